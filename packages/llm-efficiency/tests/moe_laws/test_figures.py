"""What the pictures say."""

from hexad.llm_efficiency.moe_laws import fit, plan
from hexad.llm_efficiency.moe_laws.figures import draw_plan, draw_residuals


def test_the_title_speaks_of_memory_where_there_is_a_limit(paper):
    titles = [
        draw_plan(plan(1e22, experts=(1, 8), **budget), paper).axes[0].get_title(loc="center")
        for budget in ({}, {"memory_bytes": 80e9})
    ]
    assert titles == [
        "1e+22 FLOPs; dots: the plan",
        "1e+22 FLOPs; dots: the plan, dotted: beyond memory",
    ]


def test_the_axis_of_experts_names_those_that_were_run(make_runs):
    runs = make_runs(0.002)
    figure = draw_residuals(runs, fit(runs, n_starts=1, holdout="lowest:4"))
    axis = figure.axes[3]
    assert axis.get_xlabel() == "experts"
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2", "8", "32"]
    assert axis.get_xticks(minor=True).tolist() == []

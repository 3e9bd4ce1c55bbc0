"""`hexad federated janus keys | session | protect | aggregate | verify`: rounds by files.

Files go between the parties by whatever means they have; each is sealed and signed.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hexad.core.errors import InputError
from hexad.core.terminal import progress_bar
from hexad.federated.janus.command_options import (
    Json,
    KeyFile,
    Mean,
    Model,
    Out,
    Own,
    Round,
    Session,
    State,
    Threads,
    Weight,
    load,
    open_folder,
    open_server,
    prepare,
    show,
    show_mean,
    stderr,
    tell_clipped,
)
from hexad.federated.janus.service_commands import serve, take_part

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Janus: sums of secret vectors by two servers, verified by every client.",
)

app.command("serve")(serve)
app.command("take-part")(take_part)


@app.command()
def keys(
    name: Annotated[str, typer.Argument(help="Your name; the two servers are named s0 and s1.")],
    out: Out = Path(),
    as_json: Json = False,
) -> None:
    """Make keys: NAME.key.json, which you keep, and NAME.public.json, which you give away.

    How the others know that the public file is yours is up to you: hand it over, or read its fingerprint out
    over the telephone. Keys are never overwritten. Example:

        hexad federated janus keys bank-a --out keys
    """
    import hashlib

    from hexad.core.files import writable_folder
    from hexad.federated.janus.keys import Keys, save_public

    made = Keys.generate(name)
    folder = writable_folder(out, "folder of keys")
    secret, public = folder / f"{name}.key.json", folder / f"{name}.public.json"
    made.save(secret)
    save_public(public, made.public)
    fingerprint = hashlib.sha256(made.public.sign + made.public.box).hexdigest()[:32]
    report = {"name": name, "keys": str(secret), "public": str(public), "fingerprint": fingerprint}
    show(report, as_json, f"{secret}: keep it", f"{public}: give it away", f"fingerprint {fingerprint}")


@app.command()
def session(
    public: Annotated[
        list[Path], typer.Argument(help="Files, or folders, of public keys: s0, s1 and clients.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The session file to write.")],
    like: Annotated[
        Path | None, typer.Option(help="An update (.npz), of which the session's length is taken.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Numbers in an update, instead of --like.")] = None,
    name: Annotated[
        str, typer.Option(help="Name of the session; take a new one for new parameters.")
    ] = "janus",
    clip: Annotated[float, typer.Option(help="Updates are clipped to [-CLIP, CLIP].")] = 1.0,
    bits: Annotated[int, typer.Option(help="Bits of a rounded number.")] = 16,
    max_weight: Annotated[int, typer.Option(help="Largest weight of a client.")] = 100_000,
    max_clients: Annotated[int, typer.Option(help="Most clients in a round.")] = 1000,
    modulus_bits: Annotated[int, typer.Option(help="64, or 32 for half the bytes where sums fit.")] = 64,
    threshold: Annotated[int, typer.Option(help="Fewest clients whose sum is released.")] = 3,
    group: Annotated[
        Literal["secp256k1", "ristretto255"], typer.Option(help="Fast, or constant in time.")
    ] = "secp256k1",
    as_json: Json = False,
) -> None:
    """Write the session file, which all parties must have alike: parameters and public keys, nothing secret.

    With --like, updates have that one's arrays, by name and shape; with --length they are a single array. A
    client that joins later is added by making the file again, for the servers, with the same options.
    Example:

        hexad federated janus session keys --like update.npz --out session.json
    """
    from hexad.federated.janus.command_files import layout_of, read_arrays, read_update
    from hexad.federated.janus.config import JanusConfig
    from hexad.federated.janus.keys import load_public
    from hexad.federated.janus.session_file import SessionFile

    if (like is None) == (length is None):
        raise InputError(
            "the session needs the length of an update: give --like FILE.npz or --length N, not both"
        )
    count = len(read_update(like)) if like is not None else length
    config = JanusConfig(
        length=count,  # ty: ignore[invalid-argument-type]
        clip=clip,
        bits=bits,
        max_weight=max_weight,
        max_clients=max_clients,
        modulus_bits=modulus_bits,
        threshold=threshold,
        session=name,
        group=group,
        layout="" if like is None else layout_of(read_arrays(like)),
    )
    made = SessionFile.of(config, load_public(public))
    made.save(out)
    if len(made.roster) < threshold:
        stderr.print(
            f"{len(made.roster)} clients are fewer than the threshold, {threshold}: no round has a sum until "
            "more join",
            style="yellow",
            soft_wrap=True,
        )
    report = {"session": str(out), "length": count, "clients": list(made.roster), "config": config.digest}
    show(
        report,
        as_json,
        f"{out}: session {name!r}, {count} numbers, {len(made.roster)} clients; parameters {config.digest}",
    )


@app.command()
def protect(
    update: Annotated[Path, typer.Argument(help="Your update: an .npz file of floating-point arrays.")],
    session_file: Session,
    key_file: KeyFile,
    round_number: Round,
    weight: Weight,
    out: Out = Path(),
    model: Model = None,
    state: Own = None,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Mask your update: writes one message for S_0 and one for S_1, which you send to them.

    An update is masked once a round: the same command again writes the same messages. Example:

        hexad federated janus protect update.npz -s session.json -k bank-a.key.json -r 1 --weight 120 -o out
    """
    from hexad.core.files import writable_folder
    from hexad.federated.janus.client import JanusClient
    from hexad.federated.janus.command_files import digest_of, read_update, write_message
    from hexad.federated.janus.config import check_round

    loaded, own = load(session_file, key_file)
    check_round(round_number)
    values, digest = read_update(update, loaded.config), digest_of(model)
    with (
        open_folder(loaded, own, key_file, state) as memory,
        progress_bar(stderr, "protect", quiet=as_json) as tell,
    ):
        prepare(loaded.config, tell)
        client = JanusClient(own, loaded.servers, loaded.config, threads=threads)
        memory.memory.give_to(client)
        tag = memory.tag(digest, round_number)
        messages = memory.masking(client)(values, weight, round_number, tag)
    folder = writable_folder(out, "folder of messages")
    paths = [write_message(folder, message) for message in messages]
    tell_clipped(client, loaded.config)
    report = {
        "round": round_number,
        "clipped": client.clipped,
        "to_s0": str(paths[0]),
        "to_s1": str(paths[1]),
        "bytes": [len(message) for message in messages],
    }
    show(report, as_json, *(f"{path}: {path.stat().st_size} bytes" for path in paths))


@app.command()
def aggregate(
    session_file: Session,
    key_file: KeyFile,
    round_number: Round,
    state: State,
    messages: Annotated[
        list[Path] | None, typer.Argument(help="Files, or folders, of clients' messages.")
    ] = None,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Take messages and write no list yet.")
    ] = False,
    peer_list: Annotated[
        Path | None, typer.Option(help="The other server's list: fixes who takes part, and sums.")
    ] = None,
    out: Out = Path(),
    as_json: Json = False,
) -> None:
    """A server's part of a round, in two steps; the keys say which server it is.

    First it takes the clients' messages and writes its list, which goes to the other server. Then, with the
    other's list, it sums and writes a reply for each client. A message that is refused is named and left out,
    and the exit code is then 1. There is no list until as many clients as the threshold were heard. After a
    crash the same command goes on. Example:

        hexad federated janus aggregate inbox -s session.json -k s0.key.json -r 1 --state s0 -o out

        hexad federated janus aggregate -s session.json -k s0.key.json -r 1 --state s0 \\
            --peer-list s1-round-1-to-s0.janus -o out
    """
    from hexad.core.files import writable_folder
    from hexad.federated.janus.aggregate_command import answer, take

    loaded, own = load(session_file, key_file)
    server = open_server(loaded, own, state, key_file)
    folder = writable_folder(out, "folder of messages")
    with server, progress_bar(stderr, own.name, quiet=as_json) as tell:
        report = take(server, messages or [], round_number, folder, keep_open=keep_open)
        if peer_list is not None:
            report |= answer(server, peer_list, folder, tell)
    for line in report["refused"]:
        stderr.print(f"refused: {line}", style="yellow", markup=False, soft_wrap=True)
    lines = [f"round {round_number} of {own.name}: {len(report['taken'])} clients heard"]
    if report["list"] is None and not keep_open:
        lines[0] += f", of at least {loaded.config.threshold} that a list needs: give it more messages"
    elif report["list"]:
        lines.append(f"{report['list']}: for the other server")
    if "participants" in report:
        lines.append(
            f"{len(report['participants'])} clients summed; {len(report['replies'])} replies in {folder}"
        )
    show(report, as_json, *lines)
    if report["refused"]:
        raise typer.Exit(1)


@app.command()
def verify(
    replies: Annotated[
        list[Path], typer.Argument(help="The replies of S_0 and S_1, or files and folders with them.")
    ],
    session_file: Session,
    key_file: KeyFile,
    round_number: Round,
    out: Mean = Path("mean.npz"),
    like: Annotated[
        Path | None, typer.Option(help="Your update (.npz): the mean gets its arrays' names and shapes.")
    ] = None,
    model: Model = None,
    state: Own = None,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Check the servers against each other and write the weighted mean; nothing is written where they cheat.

    Of the files given, those for you in this round are taken. Example:

        hexad federated janus verify in/*.janus -s session.json -k bank-a.key.json -r 1 --like update.npz
    """
    from hexad.core.files import writable_file
    from hexad.federated.janus.client import JanusClient
    from hexad.federated.janus.command_files import (
        check_layout,
        digest_of,
        find_replies,
        read_arrays,
        write_mean,
    )

    loaded, own = load(session_file, key_file)
    from_s0, from_s1 = find_replies(replies, own.name, round_number)
    template, digest = None if like is None else read_arrays(like), digest_of(model)
    if like is not None and template is not None:
        check_layout(template, loaded.config, like)
    with (
        open_folder(loaded, own, key_file, state) as memory,
        progress_bar(stderr, "verify", quiet=as_json) as tell,
    ):
        prepare(loaded.config, tell)
        client = JanusClient(own, loaded.servers, loaded.config, threads=threads)
        memory.memory.give_to(client)
        result = client.verify_and_unmask(from_s0, from_s1, round_number, memory.tag(digest, round_number))
        write_mean(writable_file(out, "mean"), result.mean, template)
        memory.accept(client, result, round_number)
    show_mean(result, out, round_number, as_json)

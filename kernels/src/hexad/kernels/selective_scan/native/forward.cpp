// The forward pass: a task walks through the chunks of time, and in each through its blocks of channels. The states
// of one run of states stay in registers from step to step.
#include <atomic>

#include "functions.h"
#include "memory.h"
#include "tiles.h"

namespace hexad {

namespace {

struct Scratch {
  float *rate, *state;    // (blocks, states, kWidth)
  float *b, *c;           // (states, kSteps), or (blocks, states, kWidth) if constant
  float *delta, *u, *y, *z;  // tiles
  Scratch(char* base, const ScanCall& call, const Tasks& tasks) {
    Pieces pieces(base);
    const int64_t rows = call.states * kWidth, all = tasks.most_blocks * rows;
    pieces.take(rate, all);
    pieces.take(state, all);
    pieces.take(b, call.constant_b ? all : call.states * kSteps);
    pieces.take(c, call.constant_c ? all : call.states * kSteps);
    for (float** tile : {&delta, &u, &y, &z}) pieces.take(*tile, kSteps * kWidth);
    bytes = pieces.used();
  }
  int64_t bytes;
};

class Nan {
 public:
  void look(VecF x) { found_ |= (VecI)(x != x); }
  void look(const float* x, int64_t vectors) {
    for (int64_t i = 0; i < vectors; ++i) look(load(x + i * kWidth));
  }
  void look_at_steps(const float* x, int64_t states, int steps) {
    for (int64_t n = 0; n < states; ++n)
      for (int t = 0; t < steps; ++t) any_ |= x[n * kSteps + t] != x[n * kSteps + t];
  }
  bool found() const {
    bool any = any_;
    for (int i = 0; i < kWidth; ++i) any |= found_[i] != 0;
    return any;
  }

 private:
  VecI found_{};
  bool any_ = false;
};

// One chunk of `Count` states of a block: h = exp(delta a) h + x B, y += h C.
template <int Count, bool Signed, class B, class C>
inline void advance(int64_t n, int steps, const float* rates, const float* deltas, const float* xs, B b, C c,
                    float* states, float* ys) {
  VecF rate[Count], h[Count];
  for (int j = 0; j < Count; ++j) {
    rate[j] = load(rates + (n + j) * kWidth);
    h[j] = load(states + (n + j) * kWidth);
  }
  for (int t = 0; t < steps; ++t) {
    const VecF delta = load(deltas + t * kWidth), x = load(xs + t * kWidth);
    VecF y = load(ys + t * kWidth);
    for (int j = 0; j < Count; ++j) {
      h[j] = decay<Signed>(delta, rate[j]) * h[j] + x * b.at(n + j, t);
      y += h[j] * c.at(n + j, t);
    }
    store(ys + t * kWidth, y);
  }
  for (int j = 0; j < Count; ++j) store(states + (n + j) * kWidth, h[j]);
}

void run_task(const ScanCall& call, const Tasks& tasks, const Tasks::Task& task, const Scratch& s, Nan (&nan)[8]) {
  const int64_t rows = call.states * kWidth;
  for (int64_t i = task.first; i < task.last; ++i) {
    const Block block = tasks.block(task, i);
    const int64_t at = (i - task.first) * rows;
    load_rates(call.a, call.states, block, 1.44269504f, s.rate + at);
    if (call.constant_b) load_rates(static_cast<const float*>(call.b.data), call.states, block, 1.0f, s.b + at);
    if (call.constant_c) load_rates(static_cast<const float*>(call.c.data), call.states, block, 1.0f, s.c + at);
    for (int64_t n = 0; n < call.states; ++n) {
      const float* row = call.initial ? call.initial + (task.batch * call.states + n) * call.channels : nullptr;
      store(s.state + at + n * kWidth, load_lanes(row, block));
    }
  }
  const int64_t blocks = task.last - task.first;
  nan[7].look(s.state, blocks * call.states);
  if (call.constant_b) nan[3].look(s.b, blocks * call.states);
  if (call.constant_c) nan[4].look(s.c, blocks * call.states);
  const int64_t chunks = chunk_count(call);
  for (int64_t number = 0; number < chunks; ++number) {
    const Chunk chunk = chunk_at(call, number);
    if (!call.constant_b) {
      load_steps(call, call.b, task.batch, task.group, chunk, s.b);
      nan[3].look_at_steps(s.b, call.states, chunk.steps);
    }
    if (!call.constant_c) {
      load_steps(call, call.c, task.batch, task.group, chunk, s.c);
      nan[4].look_at_steps(s.c, call.states, chunk.steps);
    }
    for (int64_t i = task.first; i < task.last; ++i) {
      const Block block = tasks.block(task, i);
      const int64_t at = (i - task.first) * rows;
      float* state = s.state + at;
      if (call.checkpoints && number > 0) {
        float* row = call.checkpoints + (task.batch * (chunks - 1) + number - 1) * call.states * call.channels;
        for (int64_t n = 0; n < call.states; ++n)
          store_lanes(load(state + n * kWidth), block, row + n * call.channels);
      }
      const VecF bias = load_lanes(call.bias, block), skip = load_lanes(call.skip, block);
      nan[5].look(skip);
      nan[6].look(bias);
      const bool last = i + 1 == task.last;
      if (!last || number + 1 < chunks) {
        const Block next = tasks.block(task, last ? task.first : i + 1);
        const Chunk then = last ? chunk_at(call, number + 1) : chunk;
        for (const Strided* x : {&call.u, &call.delta, &call.z}) fetch_tile(*x, task.batch, next, then);
        fetch_tile(call, task.batch, next, then, call.u.dtype, call.y);
      }
      load_tile(call.u, task.batch, block, chunk, s.u);
      load_tile(call.delta, task.batch, block, chunk, s.delta);
      nan[0].look(s.u, chunk.steps);
      nan[1].look(s.delta, chunk.steps);
      for (int t = 0; t < chunk.steps; ++t) {
        const VecF raw = load(s.delta + t * kWidth) + bias, u = load(s.u + t * kWidth);
        const VecF delta = call.softplus ? Logistic(raw).softplus() : raw;
        store(s.delta + t * kWidth, delta);
        store(s.u + t * kWidth, delta * u);
        store(s.y + t * kWidth, skip * u);
      }
      with_flags(call.constant_b, call.constant_c, [&](auto constant_b, auto constant_c) {
        const Operand<constant_b> b{s.b + (constant_b ? at : 0)};
        const Operand<constant_c> c{s.c + (constant_c ? at : 0)};
        each_run(call.states, [&](int64_t n, auto count) {
          if (call.softplus) advance<count, false>(n, chunk.steps, s.rate + at, s.delta, s.u, b, c, state, s.y);
          else advance<count, true>(n, chunk.steps, s.rate + at, s.delta, s.u, b, c, state, s.y);
        });
      });
      if (call.z.data) {
        load_tile(call.z, task.batch, block, chunk, s.z);
        nan[2].look(s.z, chunk.steps);
        for (int t = 0; t < chunk.steps; ++t) {
          const VecF z = load(s.z + t * kWidth);
          store(s.y + t * kWidth, load(s.y + t * kWidth) * (z * Logistic(z).value));
        }
      }
      store_tile(call, s.y, task.batch, block, chunk, call.u.dtype, call.y);
    }
  }
  for (int64_t i = task.first; i < task.last; ++i)
    for (int64_t n = 0; n < call.states; ++n)
      store_lanes(load(s.state + (i - task.first) * rows + n * kWidth), tasks.block(task, i),
                  call.last + (task.batch * call.states + n) * call.channels);
}

}  // namespace
}  // namespace hexad

extern "C" {

// Floats in a vector.
int32_t hexad_vector_width() { return hexad::kWidth; }

// Fills y, last and checkpoints. 1: too little memory.
int32_t hexad_selective_scan(hexad::ScanCall* call) {
  using namespace hexad;
  const Tasks tasks(*call);
  const int threads = thread_count(*call, tasks);
  const int64_t each = Scratch(nullptr, *call, tasks).bytes;
  const Workspace workspace(threads * each);
  if (!workspace.data()) return 1;
  std::atomic<int32_t> found{0};
  std::atomic<int> next{0};
#pragma omp parallel num_threads(threads)
  {
    const FlushSubnormals flush;
    const Scratch scratch(workspace.data() + each * next++, *call, tasks);
    Nan nan[8];
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tasks.count; ++i) run_task(*call, tasks, tasks.at(i), scratch, nan);
    int32_t bits = 0;
    for (int i = 0; i < 8; ++i) bits |= nan[i].found() << i;
    found |= bits;
  }
  call->nan = found;
  return 0;
}

}  // extern "C"

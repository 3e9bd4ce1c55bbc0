// The backward pass: a task walks through the chunks of time from the last to the first, and in each through its
// blocks of channels. The states of a chunk are computed once more from the one that was stored before it.
//
// With g the gradient of a state: g_t = y'_t C_t + exp(delta_{t+1} a) g_{t+1}, and by it B'_t = sum over channels of
// g_t x_t, C'_t = sum of y'_t h_t, x'_t = sum over states of g_t B_t, and with w_t = g_t exp(delta_t a) h_{t-1},
// delta'_t = sum over states of w_t a, a' = sum over time of w_t delta_t; x = delta u.
#include <atomic>

#include "functions.h"
#include "memory.h"
#include "tiles.h"

namespace hexad {

namespace {

constexpr float kLn2 = 0.69314718f;

// Sums of each task, added up in the end in the order of the tasks.
struct Partial {
  float *b, *c;  // (splits, batch, groups, states, steps), or (batch, channels, states) if constant
  float* a;      // (batch, channels, states)
  float *skip, *bias;  // (batch, channels)
  Partial(char* base, const ScanCall& call, const Tasks& tasks) {
    Pieces pieces(base);
    const int64_t over_time = tasks.count * call.states * call.steps;
    const int64_t over_channels = call.batch * call.channels * call.states;
    pieces.take(b, call.constant_b ? over_channels : over_time);
    pieces.take(c, call.constant_c ? over_channels : over_time);
    pieces.take(a, over_channels);
    pieces.take(skip, call.batch * call.channels);
    pieces.take(bias, call.batch * call.channels);
    bytes = pieces.used();
  }
  int64_t bytes;
};

struct Scratch {
  float *rate, *carry, *grad_a;  // (blocks, states, kWidth); carry: exp(delta_t a) g_t of the step that comes after
  float *skip, *bias;            // (blocks, kWidth)
  float *b, *c;                  // (states, kSteps), or (blocks, states, kWidth) if constant
  float *grad_b, *grad_c;        // (states, kSteps, kWidth), or (blocks, states, kWidth) if constant
  float *decays, *states;        // (kSteps, run, kWidth), (kSteps + 1, run, kWidth)
  float *delta, *slope, *u, *x, *y, *z, *outer, *grad_y, *grad_x, *grad_delta;  // tiles
  Scratch(char* base, const ScanCall& call, const Tasks& tasks) {
    Pieces pieces(base);
    const int64_t rows = call.states * kWidth, all = tasks.most_blocks * rows;
    for (float** piece : {&rate, &carry, &grad_a}) pieces.take(*piece, all);
    for (float** piece : {&skip, &bias}) pieces.take(*piece, tasks.most_blocks * kWidth);
    pieces.take(b, call.constant_b ? all : call.states * kSteps);
    pieces.take(c, call.constant_c ? all : call.states * kSteps);
    pieces.take(grad_b, call.constant_b ? all : kSteps * rows);
    pieces.take(grad_c, call.constant_c ? all : kSteps * rows);
    pieces.take(decays, kSteps * 4 * kWidth);
    pieces.take(states, (kSteps + 1) * 4 * kWidth);
    for (float** tile : {&delta, &slope, &u, &x, &y, &z, &outer, &grad_y, &grad_x, &grad_delta})
      pieces.take(*tile, kSteps * kWidth);
    bytes = pieces.used();
  }
  int64_t bytes;
};

// The sum over lanes or over time of the gradient of B or C.
template <bool Constant, int Count>
struct Sums {
  float* data;
  VecF kept[Count];
  Sums(float* first, int64_t n) : data(first + n * (Constant ? 1 : kSteps) * kWidth) {
    if constexpr (Constant)
      for (int j = 0; j < Count; ++j) kept[j] = load(data + j * kWidth);
  }
  void add(int j, int t, VecF x) {
    if constexpr (Constant) kept[j] += x;
    else store(data + (j * kSteps + t) * kWidth, load(data + (j * kSteps + t) * kWidth) + x);
  }
  void finish() {
    if constexpr (Constant)
      for (int j = 0; j < Count; ++j) store(data + j * kWidth, kept[j]);
  }
};

// One chunk of `Count` states of a block, forth and back. `start`: their states before the chunk.
template <int Count, bool Signed, bool Gated, bool ConstantB, bool ConstantC>
inline void retrace(const Scratch& s, int64_t n, int steps, int64_t at, const VecF* start) {
  const Operand<ConstantB> b{s.b + (ConstantB ? at : 0)};
  const Operand<ConstantC> c{s.c + (ConstantC ? at : 0)};
  VecF rate[Count], h[Count];
  for (int j = 0; j < Count; ++j) {
    rate[j] = load(s.rate + at + (n + j) * kWidth);
    h[j] = start[j];
    store(s.states + j * kWidth, h[j]);
  }
  for (int t = 0; t < steps; ++t) {
    const VecF delta = load(s.delta + t * kWidth), x = load(s.x + t * kWidth);
    VecF y{};
    for (int j = 0; j < Count; ++j) {
      const VecF decayed = decay<Signed>(delta, rate[j]);
      h[j] = decayed * h[j] + x * b.at(n + j, t);
      store(s.decays + (t * Count + j) * kWidth, decayed);
      store(s.states + ((t + 1) * Count + j) * kWidth, h[j]);
      if constexpr (Gated) y += h[j] * c.at(n + j, t);
    }
    if constexpr (Gated) store(s.y + t * kWidth, load(s.y + t * kWidth) + y);
  }
  Sums<ConstantB, Count> grad_b(s.grad_b + (ConstantB ? at : 0), n);
  Sums<ConstantC, Count> grad_c(s.grad_c + (ConstantC ? at : 0), n);
  VecF carry[Count], grad_a[Count];
  for (int j = 0; j < Count; ++j) {
    carry[j] = load(s.carry + at + (n + j) * kWidth);
    grad_a[j] = VecF{};
  }
  for (int t = steps - 1; t >= 0; --t) {
    const VecF delta = load(s.delta + t * kWidth), x = load(s.x + t * kWidth), grad_y = load(s.grad_y + t * kWidth);
    VecF grad_x{}, grad_delta{};
    for (int j = 0; j < Count; ++j) {
      const VecF g = grad_y * c.at(n + j, t) + carry[j];
      grad_b.add(j, t, g * x);
      grad_c.add(j, t, grad_y * load(s.states + ((t + 1) * Count + j) * kWidth));
      grad_x += g * b.at(n + j, t);
      carry[j] = g * load(s.decays + (t * Count + j) * kWidth);
      const VecF w = carry[j] * load(s.states + (t * Count + j) * kWidth);
      grad_delta += w * rate[j];
      grad_a[j] += w * delta;
    }
    store(s.grad_x + t * kWidth, load(s.grad_x + t * kWidth) + grad_x);
    store(s.grad_delta + t * kWidth, load(s.grad_delta + t * kWidth) + grad_delta);
  }
  grad_b.finish();
  grad_c.finish();
  for (int j = 0; j < Count; ++j) {
    float* sum = s.grad_a + at + (n + j) * kWidth;
    store(sum, load(sum) + grad_a[j]);
    store(s.carry + at + (n + j) * kWidth, carry[j]);
  }
}

void retrace_block(const ScanCall& call, const Scratch& s, const Tasks::Task& task, Block block, int64_t number,
                   int steps, int64_t at) {
  const int64_t chunks = chunk_count(call);
  const float* before = number > 0 ? call.checkpoints + (task.batch * (chunks - 1) + number - 1) * call.states * call.channels
                        : call.initial ? call.initial + task.batch * call.states * call.channels
                                       : nullptr;
  with_flags(call.constant_b, call.constant_c, [&](auto constant_b, auto constant_c) {
    with_flags(call.softplus == 0, call.z.data != nullptr, [&](auto is_signed, auto gated) {
      each_run(call.states, [&](int64_t n, auto count) {
        VecF start[count];
        for (int j = 0; j < count; ++j) start[j] = load_lanes(before ? before + (n + j) * call.channels : nullptr, block);
        retrace<count, is_signed, gated, constant_b, constant_c>(s, n, steps, at, start);
      });
    });
  });
}

void run_chunk(const ScanCall& call, const Tasks& tasks, const Tasks::Task& task, int64_t number, int64_t i,
               const Scratch& s) {
  const Chunk chunk = chunk_at(call, number);
  const Block block = tasks.block(task, i);
  const VecF bias = load_lanes(call.bias, block), skip = load_lanes(call.skip, block);
  const bool last = i + 1 == task.last;
  if (!last || number > 0) {
    const Block next = tasks.block(task, last ? task.first : i + 1);
    const Chunk then = last ? chunk_at(call, number - 1) : chunk;
    for (const Strided* x : {&call.u, &call.delta, &call.z, &call.gradient}) fetch_tile(*x, task.batch, next, then);
    fetch_tile(call, task.batch, next, then, call.u.dtype, call.grad_u);
    fetch_tile(call, task.batch, next, then, call.delta.dtype, call.grad_delta);
    if (call.z.data) fetch_tile(call, task.batch, next, then, call.z.dtype, call.grad_z);
  }
  load_tile(call.u, task.batch, block, chunk, s.u);
  load_tile(call.delta, task.batch, block, chunk, s.delta);
  load_tile(call.gradient, task.batch, block, chunk, s.outer);
  if (call.z.data) load_tile(call.z, task.batch, block, chunk, s.z);
  for (int t = 0; t < chunk.steps; ++t) {
    const VecF raw = load(s.delta + t * kWidth) + bias, u = load(s.u + t * kWidth);
    VecF delta = raw, slope = splat(1.0f), grad_y = load(s.outer + t * kWidth);
    if (call.softplus) {
      const Logistic logistic(raw);
      delta = logistic.softplus();
      slope = logistic.value;
    }
    if (call.z.data) {
      const VecF z = load(s.z + t * kWidth);
      grad_y *= z * Logistic(z).value;
      store(s.y + t * kWidth, skip * u);
    }
    store(s.delta + t * kWidth, delta);
    store(s.slope + t * kWidth, slope);
    store(s.x + t * kWidth, delta * u);
    store(s.grad_y + t * kWidth, grad_y);
    store(s.grad_x + t * kWidth, VecF{});
    store(s.grad_delta + t * kWidth, VecF{});
  }
  retrace_block(call, s, task, block, number, chunk.steps, (i - task.first) * call.states * kWidth);
  VecF grad_skip{}, grad_bias{};
  for (int t = 0; t < chunk.steps; ++t) {
    const VecF u = load(s.u + t * kWidth), grad_x = load(s.grad_x + t * kWidth), grad_y = load(s.grad_y + t * kWidth);
    // grad_delta was summed with rates, which are a / ln 2.
    const VecF grad_raw = (load(s.grad_delta + t * kWidth) * kLn2 + grad_x * u) * load(s.slope + t * kWidth);
    grad_skip += grad_y * u;
    grad_bias += grad_raw;
    store(s.u + t * kWidth, grad_x * load(s.delta + t * kWidth) + skip * grad_y);
    store(s.delta + t * kWidth, grad_raw);
    if (call.z.data) {
      const VecF z = load(s.z + t * kWidth);
      const Logistic logistic(z);
      const VecF slope = logistic.value * (z * logistic.complement + 1.0f);
      store(s.z + t * kWidth, load(s.outer + t * kWidth) * load(s.y + t * kWidth) * slope);
    }
  }
  float *skips = s.skip + (i - task.first) * kWidth, *biases = s.bias + (i - task.first) * kWidth;
  store(skips, load(skips) + grad_skip);
  store(biases, load(biases) + grad_bias);
  store_tile(call, s.u, task.batch, block, chunk, call.u.dtype, call.grad_u);
  store_tile(call, s.delta, task.batch, block, chunk, call.delta.dtype, call.grad_delta);
  if (call.z.data) store_tile(call, s.z, task.batch, block, chunk, call.z.dtype, call.grad_z);
}

// (states, kWidth) sums into a (batch, channels, states) tensor.
void store_sums(const ScanCall& call, const float* sums, int64_t batch, Block block, float* out) {
  for (int i = 0; i < block.lanes; ++i)
    for (int64_t n = 0; n < call.states; ++n)
      out[(batch * call.channels + block.channel + i) * call.states + n] = sums[n * kWidth + i];
}

void run_task(const ScanCall& call, const Tasks& tasks, int64_t task_number, const Scratch& s, const Partial& partial) {
  const Tasks::Task task = tasks.at(task_number);
  const int64_t rows = call.states * kWidth, blocks = task.last - task.first;
  std::memset(s.grad_a, 0, blocks * rows * sizeof(float));
  std::memset(s.skip, 0, blocks * kWidth * sizeof(float));
  std::memset(s.bias, 0, blocks * kWidth * sizeof(float));
  if (call.constant_b) std::memset(s.grad_b, 0, blocks * rows * sizeof(float));
  if (call.constant_c) std::memset(s.grad_c, 0, blocks * rows * sizeof(float));
  for (int64_t i = task.first; i < task.last; ++i) {
    const Block block = tasks.block(task, i);
    const int64_t at = (i - task.first) * rows;
    load_rates(call.a, call.states, block, 1.44269504f, s.rate + at);
    if (call.constant_b) load_rates(static_cast<const float*>(call.b.data), call.states, block, 1.0f, s.b + at);
    if (call.constant_c) load_rates(static_cast<const float*>(call.c.data), call.states, block, 1.0f, s.c + at);
    for (int64_t n = 0; n < call.states; ++n) {
      const float* row = call.last_gradient;
      if (row) row += (task.batch * call.states + n) * call.channels;
      store(s.carry + at + n * kWidth, load_lanes(row, block));
    }
  }
  // Of this split, batch and group.
  const int64_t pair = task.batch * call.groups + task.group;
  const int64_t over_time = (task.split * call.batch * call.groups + pair) * call.states * call.steps;
  for (int64_t number = chunk_count(call) - 1; number >= 0; --number) {
    const Chunk chunk = chunk_at(call, number);
    if (!call.constant_b) {
      load_steps(call, call.b, task.batch, task.group, chunk, s.b);
      std::memset(s.grad_b, 0, kSteps * rows * sizeof(float));
    }
    if (!call.constant_c) {
      load_steps(call, call.c, task.batch, task.group, chunk, s.c);
      std::memset(s.grad_c, 0, kSteps * rows * sizeof(float));
    }
    for (int64_t i = task.first; i < task.last; ++i) run_chunk(call, tasks, task, number, i, s);
    auto add_lanes = [&](const float* sums, float* out) {
      for (int64_t n = 0; n < call.states; ++n)
        for (int t = 0; t < chunk.steps; ++t)
          out[over_time + n * call.steps + chunk.first + t] = sum_of_lanes(load(sums + (n * kSteps + t) * kWidth));
    };
    if (!call.constant_b) add_lanes(s.grad_b, partial.b);
    if (!call.constant_c) add_lanes(s.grad_c, partial.c);
  }
  for (int64_t i = task.first; i < task.last; ++i) {
    const Block block = tasks.block(task, i);
    const int64_t at = (i - task.first) * rows, lane = task.batch * call.channels;
    store_sums(call, s.grad_a + at, task.batch, block, partial.a);
    if (call.constant_b) store_sums(call, s.grad_b + at, task.batch, block, partial.b);
    if (call.constant_c) store_sums(call, s.grad_c + at, task.batch, block, partial.c);
    store_lanes(load(s.skip + (i - task.first) * kWidth), block, partial.skip + lane);
    store_lanes(load(s.bias + (i - task.first) * kWidth), block, partial.bias + lane);
    if (call.grad_initial)
      for (int64_t n = 0; n < call.states; ++n)
        store_lanes(load(s.carry + at + n * kWidth), block,
                    call.grad_initial + (task.batch * call.states + n) * call.channels);
  }
}

// out = the sum of `count` rows, always in the same order.
void add_rows(const float* rows, int64_t count, int64_t width, float* out) {
  if (!out) return;
  constexpr int64_t kPart = 1024;
#pragma omp for schedule(static)
  for (int64_t first = 0; first < width; first += kPart) {
    const int64_t last = std::min(first + kPart, width);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = first; i < last; ++i) out[i] = r ? out[i] + rows[r * width + i] : rows[i];
  }
}

}  // namespace
}  // namespace hexad

extern "C" {

// Fills every gradient. 1: too little memory.
int32_t hexad_selective_scan_backward(const hexad::ScanCall* c) {
  using namespace hexad;
  const Tasks tasks(*c);
  const int threads = thread_count(*c, tasks);
  const int64_t each = Scratch(nullptr, *c, tasks).bytes, sums = Partial(nullptr, *c, tasks).bytes;
  const Workspace workspace(sums + threads * each);
  if (!workspace.data()) return 1;
  const Partial partial(workspace.data(), *c, tasks);
  std::atomic<int> next{0};
#pragma omp parallel num_threads(threads)
  {
    const FlushSubnormals flush;
    const Scratch scratch(workspace.data() + sums + each * next++, *c, tasks);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tasks.count; ++i) run_task(*c, tasks, i, scratch, partial);
    const int64_t over_channels = c->channels * c->states;
    const int64_t over_time = c->batch * c->groups * c->states * c->steps;
    add_rows(partial.a, c->batch, over_channels, c->grad_a);
    add_rows(partial.b, c->constant_b ? c->batch : tasks.splits, c->constant_b ? over_channels : over_time, c->grad_b);
    add_rows(partial.c, c->constant_c ? c->batch : tasks.splits, c->constant_c ? over_channels : over_time, c->grad_c);
    add_rows(partial.skip, c->batch, c->channels, c->grad_skip);
    add_rows(partial.bias, c->batch, c->channels, c->grad_bias);
  }
  return 0;
}

}  // extern "C"

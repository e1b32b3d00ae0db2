// HyperAdam2's entry points: a TensorCell for each tensor and run, then one pass over its coordinates, and for a matrix its turn.
#include "coordinates.h"
#include "orthogonal.h"

namespace {

// Moves stretches of a parameter: param -= size * (scale * direction) + decay * param. The two factors stay apart: a matrix
// then moves as its pieces do, which are given directions that have their scale.
class Mover {
 public:
  Mover(const Numbers& param, int64_t run, double size, double decay, double scale = 1)
      : param(param), begin(run * param.n), size((float)size), decay((float)decay), scale((float)scale) {}

  // `count` coordinates from `first` on; returns the sum of their squares.
  double operator()(int64_t first, int64_t count, const float* direction) const {
    vf sum = {};
    for (int64_t i = 0; i < count; i += B) {
      const int lanes = (int)std::min<int64_t>(B, count - i);
      const int64_t at = begin + first + i;
      alignas(64) float copy[B], last[B];
      const float* d = direction + i;
      if (lanes < B) load_lanes(last, d, lanes), d = last;
      if (lanes == B && !param.bfloat16) {
        move((float*)param.data + at, d, sum);
      } else {
        load_lanes(copy, param.data, param.bfloat16, at, lanes);
        move(copy, d, sum);
        store_lanes(copy, param.data, param.bfloat16, at, lanes);
      }
    }
    double total = 0;
    for (int l = 0; l < V; l++) total += sum[l];
    return total;
  }

 private:
  INLINE void move(float* w, const float* d, vf& sum) const {
    for (int l = 0; l < B; l += V) {
      const vf before = load(w + l), moved = before - (load(d + l) * scale * size + before * decay);
      store(w + l, moved);
      sum += moved * moved;
    }
  }

  const Numbers& param;
  const int64_t begin;
  const float size, decay, scale;
};

// What a thread works on at a time: coordinates of a part, which may be a block of one of its matrices that is turned.
struct Work2 : Item {
  Work2(const Item& item) : Item(item) {}
  int64_t matrix = -1, rows = 0;
};

// A matrix that is turned, and what is known of its blocks.
struct Turned {
  Cut cut;
  std::vector<float> matrices;
  std::vector<Whitening> blocks;
  double scale = 0;

  // Its blocks' matrices are kept until the scale is known; that of a single one is used at once.
  explicit Turned(const Cut& cut) : cut(cut), matrices(cut.blocks > 1 ? cut.blocks * EDGE * EDGE : 0), blocks(cut.blocks) {}

  void add(int64_t block, const float* x, int64_t rows, float* matrix) {
    blocks[block] = whitening_of(x, rows, cut.columns, cut.blocks > 1 ? &matrices[block * EDGE * EDGE] : matrix);
  }

  void finish() {
    double squares = 0;
    for (const Whitening& block : blocks) squares += block.squares;
    scale = direction_scale(squares, cut.rows * cut.columns);
  }

  // Move a block's coordinates; returns the sum of their squares.
  double move(int64_t block, const float* x, int64_t rows, const Part2& part, int64_t run, const Control& control) const {
    const Whitening& by = blocks[block];
    const Mover mover(part.param, run, control.lr_size, control.lr_decay, scale / std::sqrt(by.bound));
    double total = 0;
    multiplied(x, rows, cut.columns, by.matrix, [&](int64_t first, int64_t count, const float* made) {
      total += mover(block * cut.each * cut.columns + first, count, made);
    });
    return total;
  }
};

// A step of all parts, as its threads share it.
struct Step2 {
  const Rule2& rule;
  int64_t runs;
  const Part2* parts;
  const Motion2* motions;
  float* const* mixtures;
  std::vector<Control> controls;
  std::vector<Work2> works;
  std::vector<Turned> turned;
  std::vector<std::array<double, TOTALS>> partial;
  std::vector<char> fields;  // whether the weight field of a run is not zero everywhere

  Step2(const Rule2& rule, int64_t runs, int64_t count, const Part2* parts, const Motion2* motions, float* const* mixtures)
      : rule(rule), runs(runs), parts(parts), motions(motions), mixtures(mixtures), fields(runs) {
    std::vector<Item> items;
    for (int64_t run = 0; run < runs; run++) {
      const Weights& w = weights(run);
      for (int j = 0; j < J; j++)
        for (float theta : w.theta_4[j]) fields[run] |= theta != 0;
    }
    for (int64_t p = 0; p < count; p++) {
      for (int64_t run = 0; run < runs; run++)
        controls.push_back(tensor_cell(rule, weights(run), parts[p], parts[p].memory + run * MEMORY, motions[p]));
      if (mixtures[p] && parts[p].whole == parts[p].grad.n) {
        add_blocks(p);
      } else {
        items.clear();
        add_items(items, p, runs, parts[p].grad.n, BLOCKS_EACH);
        works.insert(works.end(), items.begin(), items.end());
      }
    }
    partial.resize(works.size());
  }

  // One or several works for each run of a matrix that lies here as a whole.
  void add_blocks(int64_t p) {
    const Part2& part = parts[p];
    const Cut cut(part.whole / part.fan_in, part.fan_in);
    for (int64_t run = 0; run < runs; run++) {
      for (int64_t first = 0; first < cut.rows; first += cut.each) {
        const int64_t rows = std::min(cut.each, cut.rows - first);
        Work2 work(Item{p, run, first * cut.columns, (first + rows) * cut.columns});
        work.matrix = (int64_t)turned.size();
        work.rows = rows;
        works.push_back(work);
      }
      turned.emplace_back(cut);
    }
  }

  const Weights& weights(int64_t run) const { return *(const Weights*)(rule.weights + run * rule.stride); }

  const Control& control(const Item& item) const { return controls[item.part * runs + item.run]; }

  const float* mixture(const Item& item) const { return mixtures[item.part] + item.run * parts[item.part].grad.n + item.first; }

  // Moments and mixtures; moves what is not turned, and matrices of one block.
  void mix(size_t index) {
    const Work2& work = works[index];
    if (fields[work.run])
      mix_coordinates<true>(work, partial[index]);
    else
      mix_coordinates<false>(work, partial[index]);
    if (work.matrix < 0) return;
    Turned& matrix = turned[work.matrix];
    alignas(64) Square own;
    matrix.add(block(work), mixture(work), work.rows, own);
    if (matrix.cut.blocks > 1) return;
    matrix.finish();
    turn(index);
  }

  // Moves a block of a matrix, all of whose blocks are known.
  void turn(size_t index) {
    const Work2& work = works[index];
    partial[index][0] = turned[work.matrix].move(block(work), mixture(work), work.rows, parts[work.part], work.run, control(work));
  }

  bool turns_later(size_t index) const { return works[index].matrix >= 0 && turned[works[index].matrix].cut.blocks > 1; }

 private:
  int64_t block(const Work2& work) const {
    const Cut& cut = turned[work.matrix].cut;
    return work.first / (cut.each * cut.columns);
  }

  template <bool field>
  void mix_coordinates(const Work2& work, std::array<double, TOTALS>& totals) const {
    const Part2& part = parts[work.part];
    Weights own;  // a copy, that stores cannot reach
    if (field) {
      own = weights(work.run);
      for (int j = 0; j < J; j++)
        for (float& theta : own.theta_4[j]) theta *= (float)reach(rule, j);
    }
    const Control here = control(work);
    float* const to = mixtures[work.part] ? mixtures[work.part] + work.run * part.grad.n : nullptr;
    alignas(64) float block[B];
    Window2 window;
    for (int64_t start = work.first; start < work.last; start += BLOCKS_EACH * B) {
      Totals sums = {};  // of so many that float is enough
      const Item some{work.part, work.run, start, std::min(work.last, start + BLOCKS_EACH * B)};
      some.for_each_block([&](int64_t i, int lanes) {
        Rows2 at = window.open(part, work.run, i, lanes, !to);
        if (to) at.mixture = lanes == B ? to + i : block;
        for (int l = 0; l < B; l += SIDE * V) step_lanes<field>(here, own, at, l, sums);
        if (to && lanes < B) memcpy(to + i, block, lanes * sizeof(float));
        window.close(part, work.run, i, lanes, at, (uint32_t)motions[work.part].seed);
      });
      for (int k = 0; k < TOTALS; k++)
        for (int l = 0; l < V; l++) totals[k] += sums[k][l];
    }
  }
};

}  // namespace

extern "C" {

// The largest size among each part's gradients.
void hyperadam_largest2(int64_t runs, int64_t count, const Part2* parts, float* out) {
  for (int64_t p = 0; p < count; p++) out[p] = largest(parts[p].grad.data, parts[p].grad.bfloat16, runs * parts[p].grad.n);
}

// One step of all parts. `totals` [count][runs][7] are then the sums over their coordinates. A part with an entry in `mixtures` is
// a matrix that is turned, or a piece of one: its mixture of Adams goes there, [runs][n]. A piece is not moved. What its
// direction is to be multiplied by goes to `sizes` [count][runs].
void hyperadam_step2(const Rule2* rule, int32_t threads, int64_t runs, int64_t count, const Part2* parts, const Motion2* motions,
                     float* const* mixtures, double* sizes, double* totals) {
  Step2 step(*rule, runs, count, parts, motions, mixtures);
#pragma omp parallel num_threads(threads)
  {
    FlushSubnormals flush;
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < step.works.size(); index++) step.mix(index);
#pragma omp single
    for (Turned& matrix : step.turned)
      if (matrix.cut.blocks > 1) matrix.finish();
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < step.works.size(); index++)
      if (step.turns_later(index)) step.turn(index);
  }
  for (int64_t i = 0; i < count * runs; i++) sizes[i] = step.controls[i].lr_size;
  std::fill(totals, totals + count * runs * TOTALS, 0.0);
  for (size_t index = 0; index < step.works.size(); index++) {
    const Item& item = step.works[index];
    for (int k = 0; k < TOTALS; k++) totals[(item.part * runs + item.run) * TOTALS + k] += step.partial[index][k];
  }
}

// Move the parts that have a direction, [runs][n]: param -= size * direction + lr * decay * param. The sums of their squares go
// to the first of their `totals`.
void hyperadam_turn2(int32_t threads, int64_t runs, int64_t count, const Part2* parts, const Motion2* motions,
                     const float* const* directions, const double* sizes, double* totals) {
  std::vector<Item> items;
  for (int64_t p = 0; p < count; p++)
    if (directions[p]) add_items(items, p, runs, parts[p].param.n, BLOCKS_EACH);
  std::vector<double> partial(items.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (size_t index = 0; index < items.size(); index++) {
    FlushSubnormals flush;
    const Item& item = items[index];
    const Numbers& param = parts[item.part].param;
    const Motion2& motion = motions[item.part];
    const Mover move(param, item.run, sizes[item.part * runs + item.run], motion.lr * motion.decay);
    partial[index] = move(item.first, item.last - item.first, directions[item.part] + item.run * param.n + item.first);
  }
  for (size_t index = 0; index < items.size(); index++) totals[(items[index].part * runs + items[index].run) * TOTALS] += partial[index];
}

// The directions [runs][rows * columns] of whole matrices, given their mixtures.
void hyperadam_direction2(int64_t runs, int64_t rows, int64_t columns, const float* mixtures, float* directions) {
  FlushSubnormals flush;
  const int64_t n = rows * columns;
  for (int64_t run = 0; run < runs; run++) {
    Turned matrix(Cut(rows, columns));
    const Cut& cut = matrix.cut;
    alignas(64) Square own;
    auto each = [&](auto work) {
      for (int64_t block = 0; block < cut.blocks; block++) {
        const int64_t first = block * cut.each, at = run * n + first * columns;
        work(block, std::min(cut.each, rows - first), at);
      }
    };
    each([&](int64_t block, int64_t height, int64_t at) { matrix.add(block, mixtures + at, height, own); });
    matrix.finish();
    each([&](int64_t block, int64_t height, int64_t at) {
      const Whitening& by = matrix.blocks[block];
      const float scale = (float)(matrix.scale / std::sqrt(by.bound));
      multiplied(mixtures + at, height, columns, by.matrix, [&](int64_t first, int64_t count, const float* made) {
        for (int64_t i = 0; i < count; i++) directions[at + first + i] = made[i] * scale;
      });
    });
  }
}

// The means that a tensor remembers, from the sums over all its coordinates. What overflows stays finite.
void hyperadam_remember2(int64_t runs, int64_t count, const Part2* parts, const double* totals) {
  for (int64_t p = 0; p < count; p++)
    for (int64_t run = 0; run < runs; run++)
      for (int k = 0; k < TOTALS; k++) {
        const double mean = totals[(p * runs + run) * TOTALS + k] / (double)std::max<int64_t>(parts[p].whole, 1);
        parts[p].memory[run * MEMORY + 1 + k] = (float)std::min(mean, 3e38);
      }
}
}

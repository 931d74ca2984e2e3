// SPDX-License-Identifier: MIT
// Every kernel of a GPT training step against the limits of the machine: operations per second over
// operations per byte. Draws an SVG and prints the most expensive kernels.
//
//   weft_benchmark_roofline PICTURE.svg [THREADS [LAYERS HEADS WIDTH CONTEXT BATCH]]
//
// A kernel's bytes are those of its arguments, each counted once. Its operations are instructions on elements
// (a function like exp counts as one), multiplications and additions of matrix products, and those of
// attention's products below the diagonal. The limits are measured first: matrix products on operands in the
// L1 cache, and copies of memory that exceeds all caches.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>

#include <weft/lower/code.hpp>
#include <weft/weft.hpp>

#include "../examples/gpt2.hpp"

using namespace weft;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct figures {
  double seconds = 0, operations = 0, bytes = 0;
  int calls = 0;
};

/// The CPU, with a clock around every call.
class timed_backend : public cpu::cpu_backend {
 public:
  using cpu_backend::cpu_backend;
  std::map<std::string, figures> of;

  void launch(const kernel_call& call) override {
    double elements = 1, instructions = 0, bytes = 0;
    for (int d = 0; d < call.args.order; ++d) elements *= static_cast<double>(call.args.extent[d]);
    std::map<int, dtype> types;
    for (std::size_t i = 0; i < call.instructions.size(); ++i) {
      const lower::instruction w = lower::instruction::decoded(call.instructions[i]);
      using enum lower::opcode;
      instructions += w.op < first_opcode || w.op == fold_sum || w.op == fold_max || w.op == fold_min ||
                      w.op == column_sum || w.op == column_max || w.op == column_min;
      if (w.op == load || w.op == load_row || w.op == store || w.op == store_row) types[w.a] = w.type;
      if (w.op == constant) ++i;
    }
    for (const auto& [argument, type] : types) {
      double size = static_cast<double>(size_of(type));
      for (int d = 0; d < call.args.order; ++d)
        if (call.args.stride[argument][d]) size *= static_cast<double>(call.args.extent[d]);
      bytes += size;
    }
    constexpr const char* by[] = {"elements", "rows", "columns"};
    char name[80];
    std::snprintf(name, sizeof name, "%s, %d instructions, %.2g elements",
                  by[static_cast<int>(call.division)], static_cast<int>(instructions), elements);
    timed(name, instructions * elements, bytes, [&] { cpu_backend::launch(call); });
  }
  void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) override {
    const int n = c.extents.order;
    const auto form = [](const strided& t) { return t.stride[t.extents.order - 1] == 1 ? "" : "^T"; };
    char name[80];
    std::snprintf(name, sizeof name, "A%s B%s, %lld x %lld x %lld", form(a), form(b),
                  static_cast<long long>(c.extents[n - 2]), static_cast<long long>(c.extents[n - 1]),
                  static_cast<long long>(a.extents.last()));
    timed(name, 2.0 * static_cast<double>(c.size()) * static_cast<double>(a.extents.last()),
          bytes_of(a) + bytes_of(b) + bytes_of(c), [&] { cpu_backend::multiply(code, a, b, c); });
  }
  void copy(const strided& from, const strided& to) override {
    char name[80];
    std::snprintf(name, sizeof name, "copy of %.2g elements", static_cast<double>(to.size()));
    timed(name, 0, bytes_of(from) + bytes_of(to), [&] { cpu_backend::copy(from, to); });
  }
  void call_native(const char* op, const native_code& code, const native_operands& o) override {
    double bytes = 0, operations = 0;
    for (const strided& t : o.in) bytes += bytes_of(t);
    for (const strided& t : o.out) bytes += bytes_of(t);
    const std::string name = op;
    if (name.starts_with("attention"))  // products of half a square of positions: two forward, five backward
      operations = (name == "attention" ? 2 : 5) * static_cast<double>(o.in[0].size()) *
                   static_cast<double>(o.in[0].extents[1]);
    timed(name, operations, bytes, [&] { cpu_backend::call_native(op, code, o); });
  }

 private:
  static double bytes_of(const strided& t) { return static_cast<double>(t.size() * size_of(t.type)); }
  template <class F>
  void timed(const std::string& name, double operations, double bytes, F f) {
    const double start = now();
    f();
    figures& g = of[name];
    g.seconds += now() - start;
    g.operations += operations;
    g.bytes += bytes;
    ++g.calls;
  }
};

/// f32 operations per second of all threads together, each on operands in its L1 cache.
double peak_rate(executor& threads) {
  using B = cpu::detail::blocking<float>;
  constexpr index_t depth = 32, repeats = 20000;
  double best = 0;
  for (const double begin = now(); now() - begin < 1;) {  // threads may all begin on one core
    const double start = now();
    threads.parallel_for(threads.threads(), [&](index_t, scratch_memory& scratch) {
      auto* p = static_cast<float*>(scratch.get(1 << 16));
      std::fill(p, p + (1 << 14), 0.5f);
      for (index_t r = 0; r < repeats; ++r)
        cpu::detail::micro_kernel<float, B::tile_rows, B::vectors>(
            depth, p, depth, 1, p + 1024, B::tile_columns, p + 8192, B::tile_columns, false);
    });
    best = std::max(
        best, 2.0 * B::tile_rows * B::tile_columns * depth * repeats * threads.threads() / (now() - start));
  }
  return best;
}

/// Bytes that copies read and write per second.
double bandwidth(cpu::cpu_backend& where) {
  constexpr std::size_t size = std::size_t{1} << 28;
  void *a = where.allocate(size), *b = where.allocate(size);
  where.upload(a, std::vector<char>(size, 1).data(), size);
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    const double start = now();
    where.upload(b, a, size);
    if (round) best = std::max(best, 2.0 * size / (now() - start));
  }
  where.deallocate(a, size);
  where.deallocate(b, size);
  return best;
}

/// Logarithmic axes: operations per byte from 2^-4 to 2^10, rates from 2^-10 of the peak to the peak.
class picture {
 public:
  picture(const std::string& path, double peak, double bytes) : out_(path), peak_(peak) {
    out_ << "<svg xmlns='http://www.w3.org/2000/svg' width='900' height='620' font-family='sans-serif' "
            "font-size='12'>\n"
            "<rect width='900' height='620' fill='white'/>\n";
    for (int e = -4; e <= 10; e += 2)
      out_ << "<text x='" << x(std::exp2(e)) << "' y='605' text-anchor='middle'>" << std::exp2(e)
           << "</text>\n";
    for (double rate = 1; rate < peak * 2e-9; rate *= 4)
      if (y(rate * 1e9) < 590)
        out_ << "<text x='52' y='" << y(rate * 1e9) + 4 << "' text-anchor='end'>" << rate
             << "</text>\n<line x1='60' x2='880' y1='" << y(rate * 1e9) << "' y2='" << y(rate * 1e9)
             << "' stroke='#eee'/>\n";
    const double knee = peak / bytes;
    out_ << "<polyline fill='none' stroke='black' stroke-width='2' points='" << x(0.0625) << ','
         << y(0.0625 * bytes) << ' ' << x(knee) << ',' << y(peak) << ' ' << x(1024) << ',' << y(peak)
         << "'/>\n<text x='" << x(1024) << "' y='" << y(peak) - 8 << "' text-anchor='end'>"
         << std::round(peak * 1e-9) << " GFLOP/s, " << std::round(bytes * 1e-9)
         << " GB/s</text>\n<text x='470' y='618' text-anchor='middle'>operations a byte</text>\n"
            "<text x='60' y='16'>GFLOP/s; areas are shares of the step's time</text>\n";
  }
  void add(int number, double intensity, double rate, double share) {
    out_ << "<circle cx='" << x(intensity) << "' cy='" << y(rate) << "' r='" << 3 + 70 * std::sqrt(share)
         << "' fill='steelblue' fill-opacity='0.35'/>\n"
         << "<text x='" << x(intensity) << "' y='" << y(rate) + 4 << "' text-anchor='middle'>" << number
         << "</text>\n";
  }
  ~picture() { out_ << "</svg>\n"; }

 private:
  static double x(double intensity) {
    return 60 + (std::log2(std::clamp(intensity, 0.0625, 1024.0)) + 4) / 14 * 820;
  }
  double y(double rate) const {
    return 590 - (std::log2(std::max(rate / peak_, 1.0 / 1024)) + 10) / 10 * 550;
  }
  std::ofstream out_;
  double peak_;
};

}  // namespace

int main(int count, char** values) {
  if (count < 2)
    return std::fprintf(stderr,
                        "weft_benchmark_roofline PICTURE.svg [THREADS [LAYERS HEADS WIDTH CONTEXT BATCH]]\n"),
           2;
  const auto number = [&](int i, index_t otherwise) {
    return i < count ? static_cast<index_t>(std::atoll(values[i])) : otherwise;
  };
  const auto backend = std::make_shared<timed_backend>(static_cast<int>(number(2, 0)));
  executor threads(backend->threads().threads());
  const double peak = peak_rate(threads), bytes = bandwidth(*backend);
  const device where(backend);
  const gpt2::config sizes{
      .layers = number(3, 6), .heads = number(4, 6), .width = number(5, 384), .context = number(6, 256)};
  const index_t batch = number(7, 8);
  auto model = gpt2::model<>::create(sizes, where);
  initialize(model, 1);
  adamw optimizer;
  context c(where);
  using tokens = tensor<std::uint8_t, extents<dyn, dyn>>;
  const tokens inputs(generate<std::uint8_t>(
      extents<dyn, dyn>{batch, sizes.context}, [](index_t i) { return i * 7 % 251; }, where));
  constexpr int warm = 2, steps = 5;
  double start = 0;
  for (int step = 0; step < warm + steps; ++step) {
    if (step == warm) {
      backend->of.clear();
      start = now();
    }
    tape t(c);
    t.backward(t.eval(cross_entropy(model(inputs, sizes.context), inputs)));
    optimizer.step(model, clip_factor(gradient_norm(parameters_of(model), c), 1.0), c);
    zero_grad(model);
  }
  const double whole = now() - start;
  std::vector<std::pair<std::string, figures>> all(backend->of.begin(), backend->of.end());
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double inside = 0, operations = 0;
  for (const auto& [name, f] : all) {
    inside += f.seconds;
    operations += f.operations;
  }
  std::printf(
      "%d threads: %.0f GFLOP/s, %.1f GB/s; a step of %.1f ms, %.1f%% of it in kernels, %.0f%% of the "
      "machine's rate\n\n",
      threads.threads(), peak * 1e-9, bytes * 1e-9, 1e3 * whole / steps, 100 * inside / whole,
      100 * operations / whole / peak);
  std::printf(
      "| | kernel | calls | ms | share | GFLOP/s | GB/s | of its limit "
      "|\n|---|---|---|---|---|---|---|---|\n");
  picture drawn(values[1], peak, bytes);
  int rank = 0;
  for (const auto& [name, f] : all) {
    const double rate = f.operations / f.seconds, limit = std::min(peak, f.operations / f.bytes * bytes);
    if (f.operations > 0) drawn.add(++rank, f.operations / f.bytes, rate, f.seconds / whole);
    else ++rank;
    if (rank <= 24)
      std::printf("| %d | %s | %d | %.2f | %.1f%% | %.1f | %.1f | %.0f%% |\n", rank, name.c_str(),
                  f.calls / steps, 1e3 * f.seconds / steps, 100 * f.seconds / whole, rate * 1e-9,
                  f.bytes / f.seconds * 1e-9,
                  f.operations > 0 ? 100 * rate / limit : 100 * f.bytes / f.seconds / bytes);
  }
}

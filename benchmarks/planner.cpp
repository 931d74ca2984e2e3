// SPDX-License-Identifier: MIT
// The planner against published figures: tokens per second per GPU of MPT models trained with FSDP, measured
// by MosaicML (github.com/mosaicml/llm-foundry, scripts/train/benchmarking).
//
// The machines' figures come from data sheets, with 0.9 of the memory bandwidth, 0.8 of the bandwidth of
// connections, and usual latencies. Two figures per kind of GPU are fitted so that half of the rows are
// predicted too fast and half too slow: the rate of matrix products, on contexts up to 2048, and the rate of
// attention, on longer ones.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <weft/parallel/bind.hpp>
#include <weft/planner/planner.hpp>
#include <weft/weft.hpp>

#include "../examples/gpt2.hpp"

using namespace weft;

namespace {

using plan = policy<precision::bf16, strategy::mesh<dp, fsdp<3>>>;

/// A row of the tables. `recomputed`: the blocks' activations are recomputed ("activation checkpointing").
/// `pure`: gradients are sent in bf16, too.
struct published {
  const char* model;
  index_t context;
  int gpus;
  index_t samples, micro_batches;
  bool recomputed, pure;
  double tokens;  // per second per GPU
};

struct machine {
  const char* name;
  planner::cluster figures;
  std::vector<published> rows;
};

gpt2::config sizes_of(const published& row) {
  const struct {
    const char* model;
    gpt2::config sizes;
  } known[] = {{"125m", {.layers = 12, .heads = 12, .width = 768}},
               {"350m", {.layers = 24, .heads = 16, .width = 1024}},
               {"760m", {.layers = 24, .heads = 12, .width = 1536}},
               {"1b", {.layers = 24, .heads = 16, .width = 2048}},
               {"3b", {.layers = 32, .heads = 20, .width = 2560}},
               {"7b", {.layers = 32, .heads = 32, .width = 4096}},
               {"13b", {.layers = 40, .heads = 40, .width = 5120}},
               {"30b", {.layers = 48, .heads = 56, .width = 7168}},
               {"70b", {.layers = 80, .heads = 64, .width = 8192}}};
  const auto found = std::find_if(std::begin(known), std::end(known),
                                  [&](const auto& k) { return std::string_view(k.model) == row.model; });
  gpt2::config c = found->sizes;
  c.context = row.context;
  c.vocabulary = 50368;
  return c;
}

/// Operations per second of matrix products and of attention.
struct rates {
  double products = 0, attention = 0;
};

/// Seconds of a step.
double seconds(planner::cluster c, const published& row, const rates& r) {
  c.ranks = row.gpus;
  c.device.narrow_products = r.products;
  c.device.attention = r.attention;
  const gpt2::config sizes = sizes_of(row);
  const auto job = [&](planner::traced_rank& rank, const planner::candidate& way) {
    auto model = gpt2::model<>::create(sizes, rank.where().deferred());
    adamw optimizer;
    auto options = plan::strategy_type::options(way.sizes);
    options.param_dtype = dtype::bf16;
    if (row.pure) options.reduce_dtype = dtype::bf16;
    auto run = bind<plan>(model, optimizer, rank.ranks(), options);
    if (row.recomputed) run.recompute_programs = 1 + static_cast<int>(sizes.layers);
    const tensor<std::int32_t, extents<dyn, dyn>> tokens(shape{2, {way.samples, sizes.context}},
                                                         rank.where());
    rank.step([&] {
      run.step(way.micro_batches, [&](index_t) { return model.loss(tokens, tokens, sizes.context); });
    });
  };
  const planner::forecast f =
      planner::forecast_of(c, {{.fsdp = row.gpus}, row.samples, row.micro_batches}, job);
  if (!f.refused.empty()) throw usage_error(f.refused);
  return f.seconds;
}

double predicted(const machine& m, const published& row, const rates& r) {
  return static_cast<double>(row.samples * row.micro_batches * row.context) / seconds(m.figures, row, r);
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return 0.5 * (x[(x.size() - 1) / 2] + x[x.size() / 2]);
}

/// `r` with `rate` set so that the median of predicted / published is 1, over contexts above 2048 (`is_long`)
/// or the others.
rates fitted(const machine& m, rates r, double rates::* rate, bool is_long) {
  double low = 2e13, high = 1e15;
  while (high / low > 1.005) {
    r.*rate = std::sqrt(low * high);
    std::vector<double> ratios;
    for (const published& row : m.rows)
      if ((row.context > 2048) == is_long) ratios.push_back(predicted(m, row, r) / row.tokens);
    (median(ratios) > 1 ? high : low) = r.*rate;
  }
  return r;
}

rates fitted(const machine& m) {
  rates r{1e14, 1e14};
  for (int round = 0; round < 3; ++round)
    r = fitted(m, fitted(m, r, &rates::products, false), &rates::attention, true);
  return fitted(m, r, &rates::products, false);
}

const machine machines[] = {
    {"A100 80 GB, 312 TFLOP/s, 8 in a machine, 1600 Gb/s between machines",
     {.ranks_of_node = 8,
      .device = {.products = 1.56e14, .bytes = 0.9 * 2.04e12, .launch = 4e-6, .is_gpu = true},
      .within = {.latency = 5e-6, .bytes = 0.8 * 300e9},
      .between = {.latency = 1e-5, .bytes = 0.8 * 25e9}},
     {{"70b", 2048, 64, 8, 4, true, true, 410},     {"70b", 2048, 32, 2, 16, true, true, 373},
      {"30b", 8192, 8, 1, 21, true, false, 574},    {"30b", 4096, 8, 1, 21, true, false, 814},
      {"30b", 2048, 8, 3, 21, true, false, 916},    {"30b", 512, 8, 12, 21, true, false, 967},
      {"13b", 8192, 8, 5, 3, true, false, 1795},    {"13b", 2048, 8, 2, 3, false, false, 2262},
      {"13b", 1024, 8, 40, 3, true, false, 2330},   {"7b", 32768, 8, 2, 2, true, false, 1672},
      {"7b", 8192, 8, 8, 2, true, false, 3206},     {"7b", 4096, 8, 16, 2, true, false, 3684},
      {"7b", 2048, 8, 6, 2, false, false, 4641},    {"7b", 1024, 8, 64, 2, true, false, 4357},
      {"3b", 16384, 8, 1, 6, false, false, 5529},   {"3b", 4096, 8, 5, 6, false, false, 9457},
      {"3b", 2048, 8, 10, 2, false, false, 10811},  {"3b", 512, 8, 40, 6, false, false, 12127},
      {"1b", 16384, 8, 2, 4, false, false, 9956},   {"1b", 4096, 8, 7, 4, false, false, 17807},
      {"1b", 2048, 8, 14, 4, false, false, 20513},  {"1b", 512, 8, 56, 4, false, false, 23148},
      {"760m", 8192, 8, 6, 2, false, false, 20933}, {"760m", 2048, 8, 24, 2, false, false, 32434},
      {"350m", 8192, 8, 8, 2, false, false, 36569}, {"350m", 2048, 8, 32, 2, false, false, 58782},
      {"125m", 8192, 8, 8, 2, false, false, 90392}, {"125m", 2048, 8, 32, 2, false, false, 141737}}},
    {"A100 40 GB, 312 TFLOP/s, 8 in a machine, 1600 Gb/s between machines",
     {.ranks_of_node = 8,
      .device = {.products = 1.56e14, .bytes = 0.9 * 1.56e12, .launch = 4e-6, .is_gpu = true},
      .within = {.latency = 5e-6, .bytes = 0.8 * 300e9},
      .between = {.latency = 1e-5, .bytes = 0.8 * 25e9}},
     {{"70b", 2048, 128, 4, 1, true, true, 376},
      {"70b", 2048, 64, 2, 1, true, true, 276},
      {"30b", 2048, 128, 6, 1, true, true, 865},
      {"30b", 2048, 32, 4, 1, true, true, 857},
      {"13b", 2048, 128, 16, 1, true, true, 1972},
      {"13b", 2048, 64, 16, 1, true, true, 1976},
      {"13b", 2048, 32, 14, 1, true, true, 1998},
      {"13b", 2048, 16, 10, 1, true, true, 1993},
      {"13b", 2048, 8, 4, 16, true, true, 1668},
      {"7b", 2048, 128, 18, 1, true, true, 3623},
      {"7b", 2048, 64, 18, 1, true, true, 3665},
      {"7b", 2048, 32, 18, 1, true, true, 3725},
      {"7b", 2048, 16, 16, 1, true, true, 3645},
      {"7b", 2048, 8, 12, 4, true, true, 3679},
      {"3b", 2048, 128, 6, 1, false, true, 9538}}},
    {"H100 80 GB, 990 TFLOP/s, 8 in a machine, 3200 Gb/s between machines",
     {.ranks_of_node = 8,
      .device = {.products = 4e14, .bytes = 0.9 * 3.35e12, .launch = 4e-6, .is_gpu = true},
      .within = {.latency = 5e-6, .bytes = 0.8 * 450e9},
      .between = {.latency = 1e-5, .bytes = 0.8 * 50e9}},
     {{"70b", 2048, 64, 8, 4, true, false, 1039},   {"70b", 2048, 32, 2, 16, true, false, 882},
      {"30b", 2048, 32, 14, 3, true, false, 2308},  {"30b", 2048, 16, 10, 3, true, false, 2263},
      {"30b", 2048, 8, 3, 21, true, false, 2002},   {"13b", 2048, 64, 2, 1, false, false, 4800},
      {"13b", 2048, 32, 2, 1, false, false, 4811},  {"13b", 2048, 16, 2, 1, false, false, 4767},
      {"13b", 2048, 8, 2, 1, false, false, 4792},   {"7b", 8192, 8, 8, 2, true, false, 6935},
      {"7b", 2048, 8, 6, 1, false, false, 10643},   {"3b", 8192, 8, 3, 6, false, false, 16578},
      {"3b", 2048, 64, 6, 3, false, false, 22525},  {"3b", 2048, 32, 6, 3, false, false, 23021},
      {"3b", 2048, 16, 10, 3, false, false, 24142}, {"1b", 2048, 64, 20, 1, false, false, 44402},
      {"1b", 2048, 32, 20, 1, false, false, 45130}, {"1b", 2048, 16, 20, 1, false, false, 46037},
      {"1b", 2048, 8, 14, 1, false, false, 45455},  {"760m", 2048, 32, 24, 1, false, false, 67971}}}};

}  // namespace

int main() {
  rates r;
  for (const machine& m : machines) {
    const bool has_long =
        std::any_of(m.rows.begin(), m.rows.end(), [](const published& row) { return row.context > 2048; });
    r = has_long ? fitted(m) : fitted(m, r, &rates::products, false);
    std::printf(
        "%s: products at %.0f TFLOP/s, attention at %.0f\n"
        "  model context  GPUs   published  predicted  of it\n",
        m.name, 1e-12 * r.products, 1e-12 * r.attention);
    std::vector<double> errors;
    for (const published& row : m.rows) {
      const double tokens = predicted(m, row, r);
      errors.push_back(std::abs(tokens / row.tokens - 1));
      std::printf("  %-6s %6lld %5d %11.0f %10.0f   %.2f\n", row.model, static_cast<long long>(row.context),
                  row.gpus, row.tokens, tokens, tokens / row.tokens);
    }
    std::printf("  error: median %.1f%%, most %.1f%%\n", 100 * median(errors),
                100 * *std::max_element(errors.begin(), errors.end()));
  }
}

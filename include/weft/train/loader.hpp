// SPDX-License-Identifier: MIT
// Batches of a dataset: in order or shuffled, read ahead by a thread, resumable.
//
//   for (auto [images, labels] : loader(idx_images<784>("train"), {.batch = 64, .shuffle = true})) ...
//
// The order is a function of seed and pass, so a position is one number: after `seek(position)` with the
// position of another loader, a loader continues where that one was.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/tensor/tensor.hpp>
#include <weft/train/read_ahead.hpp>

namespace weft {

namespace detail {
/// The extents of a sample, from those of a batch, whose first dim is the batch.
constexpr shape sample_of(const shape& batch) {
  shape s;
  for (int d = 1; d < batch.order; ++d) s.append(batch[d]);
  return s;
}
template <class Fields>
inline constexpr bool samples_are_static = false;
template <class... F>
inline constexpr bool samples_are_static<std::tuple<F...>> = (sample_of(F::static_shape).is_static() && ...);

template <class D>
concept says_extents = requires(const D& d) {
  { d.extents() } -> std::convertible_to<std::array<shape, std::tuple_size_v<typename D::fields>>>;
};

/// The extents of a sample of each field.
template <class D, class Fields = typename D::fields>
auto sample_extents(const D& data) {
  return [&]<std::size_t... K>(std::index_sequence<K...>) -> std::array<shape, sizeof...(K)> {
    if constexpr (says_extents<D>) return data.extents();
    else return {sample_of(std::tuple_element_t<K, Fields>::static_shape)...};
  }(std::make_index_sequence<std::tuple_size_v<Fields>>());
}
}  // namespace detail

/// Numbered samples. `fields` is a tuple of the tensor types of a batch, whose first dim is the batch;
/// read(i, p, q, ...) writes sample i, one pointer per field, and is called by a thread of the loader. If the
/// types do not give the other extents, extents() must return them for each field.
///
///   struct squares {
///     using fields = std::tuple<tensor<float, extents<dyn, 1>>, tensor<float, extents<dyn, 1>>>;
///     index_t size() const { return 100; }
///     void read(index_t i, float* x, float* y) const { *x = 0.01f * i, *y = *x * *x; }
///   };
template <class D>
concept dataset = requires(const D& d) {
  typename D::fields;
  { d.size() } -> std::convertible_to<index_t>;
  requires detail::samples_are_static<typename D::fields> || detail::says_extents<D>;
};

namespace detail {
/// Compile-time error: D is not a dataset.
template <class D>
struct no_dataset {
  static_assert(unsupported<D>,
                "weft: loader: a dataset must be a struct with `fields`, a tuple of the tensor types of a "
                "batch, index_t size() const, and void read(index_t i, T* to...) const, which writes sample "
                "i");
  using fields = std::tuple<>;
  no_dataset(const D&) {}
  index_t size() const { return 0; }
  void read(index_t) const {}
};
}  // namespace detail

/// The batches of a step that belong to a rank, if a step is shared by ranks and micro-batches. A step
/// consists of ranks * micro_batches consecutive batches; see bound_run::micro_batch for their assignment.
struct loader_share {
  int rank = 0, ranks = 1;
  index_t micro_batches = 1;  // per rank in a step
  bool interleaved = false;   // batch j * ranks + rank instead of rank * micro_batches + j

  index_t batches() const { return ranks * micro_batches; }
  index_t at(index_t j) const { return interleaved ? j * ranks + rank : rank * micro_batches + j; }
};

/// Options of a loader.
struct loader_options {
  index_t batch = 1;
  bool shuffle = false;
  std::uint64_t seed = 0;
  bool drop_last = false;  // omits the last batch of a pass if it is smaller
  int prefetch = 2;        // batches read ahead; 0 reads on demand
  /// With several batches a step, an incomplete last step of a pass is omitted.
  loader_share share{};
};

/// The order of samples: position p of a run is sample at(p). Shuffling is a Fisher-Yates permutation per
/// pass. Throws value_error if there is no sample, or a position is negative.
class sampler {
 public:
  sampler(index_t samples, bool shuffle, std::uint64_t seed)
      : samples_(samples), shuffle_(shuffle), seed_(seed) {
    if (samples < 1) refuse<value_error>({"weft: sampler: there are ", samples, " samples, not 1 or more"});
  }

  index_t at(index_t position) {
    if (position < 0) refuse<value_error>({"weft: sampler: position ", position, " is negative"});
    if (!shuffle_) return position % samples_;
    const index_t pass = position / samples_;
    if (pass != pass_) draw(pass);
    return order_[static_cast<std::size_t>(position % samples_)];
  }

 private:
  void draw(index_t pass) {
    pass_ = pass;
    order_.resize(static_cast<std::size_t>(samples_));
    std::iota(order_.begin(), order_.end(), index_t{0});
    const philox_key key = key_of(mix(seed_, static_cast<std::uint64_t>(pass)));
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[philox_word(key, i) % i]);
  }

  index_t samples_, pass_ = -1;
  bool shuffle_;
  std::uint64_t seed_;
  std::vector<index_t> order_;
};

/// Batches of a dataset, as a range over the rest of a pass, or one by one with `next`.
template <dataset D>
class loader {
 public:
  using batch = typename D::fields;

  /// Throws usage_error if the dataset or the batch is empty, or an option is out of range; shape_error if
  /// the dataset's samples do not fit its fields.
  loader(D data, loader_options o, const device& where = default_device())
      : data_(std::make_shared<const D>(std::move(data))),
        options_(o),
        where_(where),
        order_(checked(*data_, o), o.shuffle, o.seed),
        ahead_(std::make_unique<read_ahead<request>>(
            static_cast<std::size_t>(o.prefetch) + 1,
            [data = data_](request& r) { read(*data, r, std::make_index_sequence<count>{}); })) {}

  index_t samples() const { return data_->size(); }
  const D& data() const { return *data_; }
  /// Samples taken so far by all ranks, at the end of a step. `seek` continues there.
  index_t position() const { return at_.step + at_.index * options_.batch; }
  /// Continues at `position`. Throws value_error unless 0 <= position <= 2^53.
  void seek(index_t position) {
    if (position < 0 || position > most_samples)
      throw value_error("weft: loader: seek: position " + std::to_string(position) +
                        " is not between 0 and 2^53");
    at_ = {position, 0};
  }

  /// The next `batch` samples; continues with the next pass at the end of one. Rethrows what `read` of the
  /// dataset throws.
  batch next() { return take(options_.batch, false); }

  /// Iterates over the remaining batches of this pass. A batch is taken when it is first read or skipped.
  class iterator {
   public:
    explicit iterator(loader* of) : of_(of) {}
    const batch& operator*() {
      if (!now_) now_ = of_->take(of_->left_for_batch(of_->at_), true);
      return *now_;
    }
    iterator& operator++() {
      (void)**this;
      now_.reset();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !now_ && of_->pass_ends(); }

   private:
    loader* of_;
    std::optional<batch> now_{};
  };
  /// Begins the next pass if nothing is left of this one except samples that are to be omitted. Throws
  /// usage_error if a step shared by ranks or micro-batches takes more samples than a pass has, because no
  /// step would ever be complete.
  iterator begin() {
    if (is_shared() && samples() < step_samples())
      refuse<usage_error>({"weft: loader: the dataset has ", samples(), " samples, but a step of ",
                           options_.share.batches(), " batches of ", options_.batch, " takes ",
                           step_samples(), ": an epoch has no whole step"});
    skip_incomplete_step();
    started_at_ = at_.step;
    return iterator(this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  static constexpr std::size_t count = std::tuple_size_v<batch>;
  static constexpr index_t most_samples = index_t{1} << 53;  // of a run or step, so that no sum overflows
  /// A batch of this rank: the position of the first sample of its step, and its index among the rank's
  /// batches of the step.
  struct place {
    index_t step, index;
  };
  struct request {
    index_t position = 0;
    std::vector<index_t> samples;
    std::array<std::vector<std::byte>, count> fields;
    bool is(index_t p, index_t size) const {
      return position == p && static_cast<index_t>(samples.size()) == size;
    }
  };

  static index_t checked(const D& data, const loader_options& o) {
    if (o.batch < 1) throw usage_error("weft: loader: a batch of " + std::to_string(o.batch) + " samples");
    if (o.prefetch < 0)
      throw usage_error("weft: loader: prefetch must be 0 or more, not " + std::to_string(o.prefetch));
    const loader_share& s = o.share;
    if (s.micro_batches < 1 || s.rank < 0 || s.rank >= s.ranks)
      throw usage_error("weft: loader: rank " + std::to_string(s.rank) + " of " + std::to_string(s.ranks) +
                        " with " + std::to_string(s.micro_batches) + " batches per step");
    index_t in_step = 0;
    if (__builtin_mul_overflow(s.micro_batches, index_t{s.ranks}, &in_step) ||
        __builtin_mul_overflow(in_step, o.batch, &in_step) || in_step > most_samples)
      throw usage_error("weft: loader: " + std::to_string(s.micro_batches) + " batches of " +
                        std::to_string(o.batch) + " samples on each of " + std::to_string(s.ranks) +
                        " ranks are more than 2^53 samples per step");
    check_extents(data, o.batch, std::make_index_sequence<count>{});
    const index_t samples = data.size();
    if (samples < 1)
      throw usage_error("weft: loader: the dataset has " + std::to_string(samples) + " samples");
    if (o.drop_last && samples < o.batch)
      throw usage_error("weft: loader: the dataset has " + std::to_string(samples) +
                        " samples, fewer than a batch of " + std::to_string(o.batch) +
                        ", and drop_last omits smaller batches: .batch = " + std::to_string(samples) +
                        ", or .drop_last = false");
    return samples;
  }

  /// Throws shape_error unless the samples' extents fit the fields and the size of a batch fits into 63 bits.
  template <std::size_t... K>
  static void check_extents(const D& data, index_t size, std::index_sequence<K...>) {
    const std::array<shape, count> extents = detail::sample_extents(data);
    const auto check = [&](std::size_t field, const shape& fixed, dtype type) {
      const shape& sample = extents[field];
      shape s{1, {dyn}};
      for (int d = 0; d < sample.order && s.order < max_order; ++d) s.append(sample[d]);
      if (!sample.is_static() || sample.order >= max_order || !detail::can_be_equal(fixed, s))
        refuse<shape_error>({"weft: loader: field ", static_cast<index_t>(field), " of shape ", fixed,
                             ", whose first dim is that of the batch, cannot have samples of shape ",
                             sample});
      s[0] = size;
      bytes_of(s, type);
    };
    (check(K, std::tuple_element_t<K, batch>::static_shape, dtype_of<element_of<K>>), ...);
  }

  index_t step_samples() const { return options_.share.batches() * options_.batch; }
  bool is_shared() const { return options_.share.batches() > 1; }
  index_t left_of_pass(const place& at) const { return samples() - at.step % samples(); }
  index_t left_for_batch(const place& at) const {
    return is_shared() ? options_.batch : std::min(options_.batch, left_of_pass(at));
  }
  index_t first_sample(const place& at) const {
    return at.step + options_.share.at(at.index) * options_.batch;
  }
  place after(place at, index_t size) const {
    if (!is_shared()) return {at.step + size, 0};
    if (++at.index < options_.share.micro_batches) return at;
    return {at.step + step_samples(), 0};
  }

  /// Skips the last step of a pass if it is incomplete and to be omitted.
  void skip_incomplete_step() {
    if ((options_.drop_last || is_shared()) && at_.index == 0 && left_of_pass(at_) < step_samples())
      at_.step += left_of_pass(at_);
  }
  /// Whether the pass that began last has ended.
  bool pass_ends() {
    skip_incomplete_step();
    return at_.step > started_at_ && at_.step / samples() > started_at_ / samples();
  }

  batch take(index_t size, bool within_pass) {
    while (!ahead_->empty() && !ahead_->oldest().is(first_sample(at_), size)) ahead_->drop();
    if (ahead_->empty()) ask(at_, size);
    at_ = after(at_, size);
    while (!ahead_->full()) ask(asked_, within_pass ? left_for_batch(asked_) : options_.batch);
    const dropped_at_end drops{*ahead_};
    return on_device(ahead_->filled(), size);
  }
  struct dropped_at_end {
    read_ahead<request>& from;
    ~dropped_at_end() { from.drop(); }
  };

  void ask(const place& at, index_t size) {
    request& r = ahead_->free();
    r.position = first_sample(at);
    r.samples.resize(static_cast<std::size_t>(size));
    for (index_t i = 0; i < size; ++i) r.samples[static_cast<std::size_t>(i)] = order_.at(r.position + i);
    ahead_->submit();
    asked_ = after(at, size);
  }

  template <std::size_t K>
  using element_of = typename std::tuple_element_t<K, batch>::value_type;

  template <std::size_t... K>
  static void read(const D& data, request& r, std::index_sequence<K...>) {
    constexpr bool reads = requires { data.read(index_t{}, static_cast<element_of<K>*>(nullptr)...); };
    static_assert(reads, "weft: loader: the dataset needs void read(index_t i, T* to...) const, with one "
                         "pointer for each of its fields, to elements of the field's type");
    if constexpr (!reads) return;
    else read_samples(data, r, std::index_sequence<K...>());
  }
  template <std::size_t... K>
  static void read_samples(const D& data, request& r, std::index_sequence<K...>) {
    const std::array<shape, count> extents = detail::sample_extents(data);
    (r.fields[K].resize(r.samples.size() * static_cast<std::size_t>(extents[K].size()) *
                        sizeof(element_of<K>)),
     ...);
    for (std::size_t i = 0; i < r.samples.size(); ++i)
      data.read(r.samples[i], reinterpret_cast<element_of<K>*>(r.fields[K].data()) +
                                  static_cast<index_t>(i) * extents[K].size()...);
  }

  batch on_device(const request& r, index_t size) const {
    const std::array<shape, count> extents = detail::sample_extents(*data_);
    return [&]<std::size_t... K>(std::index_sequence<K...>) {
      return batch{[&] {
        shape s{1, {size}};
        for (int d = 0; d < extents[K].order; ++d) s.append(extents[K][d]);
        std::tuple_element_t<K, batch> t(s, where_);
        t.copy_from(reinterpret_cast<const element_of<K>*>(r.fields[K].data()));
        return t;
      }()...};
    }(std::make_index_sequence<count>{});
  }

  std::shared_ptr<const D> data_;
  loader_options options_;
  device where_;
  sampler order_;
  place at_{0, 0}, asked_{0, 0};  // the next batch, and the next to be read ahead
  index_t started_at_ = 0;
  std::unique_ptr<read_ahead<request>> ahead_;
};

/// Compile-time error: not a dataset. (enable_if, because clang forms the type before it checks constraints.)
template <class D>
loader(const D&, loader_options, const device& = default_device())
    -> loader<std::enable_if_t<!dataset<D>, detail::no_dataset<D>>>;

}  // namespace weft

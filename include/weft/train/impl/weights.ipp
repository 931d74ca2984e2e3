// SPDX-License-Identifier: MIT
// Definitions of <weft/train/weights.hpp>.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>

#include <weft/base/config.hpp>
#include <weft/base/xxh64.hpp>
#include <weft/train/weights.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE std::deque<weight_file> weight_files(const std::string& path,
                                                 const std::vector<held_tensor>& held,
                                                 const io::load_options& options) {
  std::set<std::string> names;
  for (const held_tensor& t : held) names.insert(options.prefix + t.name);
  std::deque<weight_file> files;
  if (!path.ends_with(".json")) files.push_back({io::input_file(path), {}, std::move(names)});
  else
    for (auto& [file, its_names] :
         io::indexed_files(path, [&](const std::string& name) { return names.contains(name); }))
      files.push_back({io::input_file(file), {}, its_names});
  for (weight_file& f : files) f.beginning = io::safetensors_beginning(f.file);
  return files;
}

/// The names of the tensors at `path`.
inline std::set<std::string> names_of_weights(const std::string& path, const std::deque<weight_file>& files) {
  std::set<std::string> names;
  const auto put = [&](const std::string& name) { return names.insert(name), false; };
  if (path.ends_with(".json")) io::indexed_files(path, put);
  else
    for (const io::tensor_entry& t :
         io::parse_safetensors_header(files[0].beginning, files[0].file.size(), path).tensors)
      put(t.name);
  return names;
}

WEFT_DEFINE std::vector<tensor_in_file> tensors_in_files(const std::string& path,
                                                         const std::deque<weight_file>& files,
                                                         const std::vector<held_tensor>& held,
                                                         const io::load_options& options) {
  struct place {
    const io::input_file* file;
    std::uint64_t at;
    io::stored_tensor form;  // without its elements
  };
  std::map<std::string, place> places;
  std::map<std::string, std::string> others;
  for (const auto& [file, beginning, names] : files) {
    io::safetensors_header header = io::parse_safetensors_header(beginning, file.size(), file.path());
    for (const io::tensor_entry& e : header.tensors)
      if (names.contains(e.name)) places[e.name] = {&file, header.data + e.begin, {e.type, e.extents, {}}};
    if (path.ends_with(".json"))
      for (const std::string& name : names)
        if (!places.contains(name) && !header.others.contains(name))
          io::detail::refuse_index(path, file.path(), name);
    others.merge(header.others);
  }
  std::vector<tensor_in_file> all;
  for (const held_tensor& t : held) {
    const std::string name = options.prefix + t.name;
    const auto found = places.find(name);
    if (found == places.end())
      io::detail::refuse_missing(path, options.prefix, t.name, others, names_of_weights(path, files),
                                 "load_weights(path, run, ");
    const auto& [file, at, form] = found->second;
    const shape rows = parallel::in_rows(form.extents);
    const bool same_shape = rows == parallel::in_rows(t.whole.extents),
               convertible = is_floating(form.type) && is_floating(t.whole.type);
    if (!same_shape || (form.type != t.whole.type && !(convertible && options.convert)))
      io::detail::refuse_tensor(
          file->path(), name, form, t.whole,
          same_shape && convertible ? ": load_weights(path, run, {.convert = true}) converts" : "");
    if (t.local) all.push_back({&t, {*file, at, whole_box(rows), {}, name, form.type}});
  }
  return all;
}

WEFT_DEFINE std::string sums_of_weights(const std::string& path, const std::deque<weight_file>& files) {
  constexpr std::uint64_t blocks = 16, block_bytes = 4096;
  std::string sums;
  const auto put = [&](std::uint64_t sum) { sums.append(reinterpret_cast<const char*>(&sum), sizeof sum); };
  if (path.ends_with(".json")) put(xxh64(io::input_file(path).text()));
  for (const weight_file& f : files) {
    std::string sample = f.beginning;
    for (std::uint64_t b = 0; b < blocks; ++b) {
      const std::uint64_t at = f.beginning.size() + (f.file.size() - f.beginning.size()) / blocks * b;
      const auto bytes = static_cast<std::size_t>(std::min(block_bytes, f.file.size() - at));
      sample.resize(sample.size() + bytes);
      f.file.read(at, sample.data() + sample.size() - bytes, bytes);
    }
    put(xxh64(sample, f.file.size()));
  }
  return sums;
}

WEFT_DEFINE void require_same_weights(const std::string& path, const std::deque<weight_file>& files,
                                      const std::string& own, const std::string& of_rank_0) {
  if (own == of_rank_0) return;
  const auto differs = std::mismatch(own.begin(), own.end(), of_rank_0.begin(), of_rank_0.end());
  const auto number = static_cast<std::size_t>(differs.first - own.begin()) / sizeof(std::uint64_t);
  const std::size_t indices = path.ends_with(".json") ? 1 : 0;
  const bool is_part = number >= indices && number - indices < files.size();
  refuse<io_error>({"weft: ", is_part ? files[number - indices].file.path() : path,
                    ": differs from the file that rank 0 reads: all ranks must read equal files"});
}

WEFT_DEFINE weights_writer::weights_writer(std::string path, communicator& owners,
                                           std::vector<held_tensor> held, const io::save_options& as,
                                           comm_options o)
    : path_(std::move(path)), owners_(owners), options_(std::move(o)), held_(std::move(held)) {
  io::detail::check(as);
  io::detail::require_written("save_weights", path_);
  if (path_.ends_with(".npy") || path_.ends_with(".npz"))
    refuse<value_error>(
        {"weft: save_weights: ", path_, ": NumPy files cannot be written: use a .safetensors file"});
  for (held_tensor& t : held_)
    if (as.as && is_floating(t.whole.type)) t.whole.type = *as.as;
  std::sort(held_.begin(), held_.end(), [](const held_tensor& a, const held_tensor& b) {
    return io::detail::comes_before(a.whole.type, a.name, b.whole.type, b.name);
  });
}

WEFT_DEFINE void weights_writer::open(io::file_calls& calls) {
  for (const held_tensor& t : held_)
    if (t.local) t.local->where->synchronize();
  if (owners_.rank() != 0) return;
  std::vector<io::tensor_entry> entries;
  for (const held_tensor& t : held_) entries.push_back({t.name, t.whole.type, t.whole.extents, 0, 0});
  file_.emplace(calls, path_);
  file_->append(io::safetensors_beginning(entries, {{"format", "pt"}}));
}

WEFT_DEFINE std::string weights_writer::write() {
  gather_boxes();
  std::string failure;
  const auto attempt = [&](auto f) {
    if (failure.empty()) failure = message_of(f);
  };
  for (std::size_t t = 0; t < held_.size(); ++t) {
    const index_t size = size_of(held_[t].whole.type);
    const index_t most = static_cast<index_t>(io::block_bytes) / size;
    for_each_slab(parallel::in_rows(held_[t].whole.extents), most, [&](const box& slab) {
      attempt([&] { copy_own(held_[t], slab); });
      if (!failure.empty()) message_.resize(own_bytes(held_[t], slab));  // rank 0 expects this many
      if (owners_.rank() != 0) return send();
      slab_.resize(static_cast<std::size_t>(slab.size() * size));
      if (failure.empty()) place(slab, 0, t);
      for (int r = 1; r < owners_.size(); ++r) receive(r, slab, t);
      attempt([&] { file_->append({slab_.data(), slab_.size()}); });
    });
  }
  if (file_) attempt([&] { file_->finish(); });
  return failure;
}

WEFT_DEFINE void weights_writer::gather_boxes() {
  std::vector<std::int64_t> own;
  for (held_tensor& t : held_) {
    if (!t.saves || !t.local) t.parts.clear();
    own.push_back(static_cast<std::int64_t>(t.parts.size()));
    for (const stored_box& p : t.parts)
      for (const shape* s : {&p.where.offset, &p.where.extents})
        own.insert(own.end(), s->extent, s->extent + s->order);
  }
  const auto ranks = static_cast<std::size_t>(owners_.size());
  std::vector<std::int64_t> numbers;
  const std::vector<std::int64_t> counts =
      of_all_ranks(owners_, {static_cast<std::int64_t>(own.size())}, options_);
  if (owners_.rank() == 0)
    numbers.resize(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), index_t{0})));
  owners_.gather(own, numbers, 0, rank_counts(counts.data(), counts.size()), options_).wait();
  boxes_.assign(owners_.rank() == 0 ? ranks * held_.size() : 0, {});
  const std::int64_t* n = numbers.data();
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const int order = parallel::in_rows(held_[i % held_.size()].whole.extents).order;
    for (std::int64_t left = *n++; left > 0; --left) {
      box b{{order, {}}, {order, {}}};
      for (shape* s : {&b.offset, &b.extents})
        for (int d = 0; d < order; ++d) (*s)[d] = *n++;
      boxes_[i].push_back(b);
    }
  }
}

WEFT_DEFINE std::size_t weights_writer::own_bytes(const held_tensor& t, const box& slab) {
  std::size_t bytes = 0;
  for (const stored_box& p : t.parts) bytes += bytes_of(intersection(slab, p.where).extents, t.whole.type);
  return bytes;
}

WEFT_DEFINE void weights_writer::copy_own(const held_tensor& t, const box& slab) {
  message_.clear();
  if (!t.local) return;
  const index_t size = size_of(t.local->type);
  for (const stored_box& p : t.parts) {
    const box own = intersection(slab, p.where);
    const std::size_t begin = message_.size();
    message_.resize(begin + static_cast<std::size_t>(own.size() * size));
    for_each_run(own, p, [&](index_t to, index_t from, index_t count) {
      t.local->where->download(message_.data() + begin + to * size,
                               static_cast<const char*>(t.local->memory.data()) + from * size,
                               static_cast<std::size_t>(count * size));
    });
  }
  if (t.local->type != t.whole.type)
    message_ = io::converted({message_.data(), message_.size()}, t.local->type, t.whole.type);
}

WEFT_DEFINE void weights_writer::receive(int rank, const box& slab, std::size_t t) {
  std::size_t bytes = 0;
  for (const box& b : boxes_of_rank(rank, t))
    bytes += bytes_of(intersection(slab, b).extents, held_[t].whole.type);
  message_.resize(bytes);
  if (message_.empty()) return;
  owners_.receive(bytes_in(message_), rank, 0, options_).wait();
  place(slab, rank, t);
}

WEFT_DEFINE void weights_writer::place(const box& slab, int rank, std::size_t t) {
  const index_t size = size_of(held_[t].whole.type);
  const char* message = message_.data();
  for (const box& b : boxes_of_rank(rank, t)) {
    const box common = intersection(slab, b);
    for_each_run(common, slab, [&](index_t from, index_t to, index_t count) {
      std::memcpy(slab_.data() + to * size, message + from * size, static_cast<std::size_t>(count * size));
    });
    message += common.size() * size;
  }
}

}  // namespace detail
}  // namespace weft

// SPDX-License-Identifier: MIT
// Weights of a run from and to safetensors: each rank reads and sends the boxes that it holds, and no rank
// holds more than 1 MiB of another's elements.
//
//   auto model = gpt::create(config, where.deferred());
//   auto run = bind<plan>(model, optimizer, ranks);
//   load_weights("model.safetensors", run);
//   load_weights("llama/model.safetensors.index.json", run, {.convert = true});  // several files, of bf16
//   ...
//   save_weights("trained.safetensors", run);
#pragma once

#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/io/box_file.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/agreement.hpp>

namespace weft {

namespace detail {

/// A tensor of a rank, and the file that has it whole.
struct tensor_in_file {
  const held_tensor* to;
  io::box_in_file from;
};

/// A file of weights, its bytes before the elements, and the names of the tensors that are read from it.
struct weight_file {
  io::input_file file;
  std::string beginning;
  std::set<std::string> names;
};
/// The files of weights at `path`: one file, or the files of an index that have tensors of the run.
std::deque<weight_file> weight_files(const std::string& path, const std::vector<held_tensor>& held,
                                     const io::load_options& options);

/// Where the tensors of a run are in files of weights. Throws io_error, naming file and tensor, if a tensor
/// is missing, has another shape, or has another dtype that `options` does not convert.
std::vector<tensor_in_file> tensors_in_files(const std::string& path, const std::deque<weight_file>& files,
                                             const std::vector<held_tensor>& held,
                                             const io::load_options& options);

/// A checksum of 8 bytes for each file at `path`, covering its size, its header and 16 blocks of its
/// elements; preceded by that of the index if there is one.
std::string sums_of_weights(const std::string& path, const std::deque<weight_file>& files);
/// Throws io_error, naming the first file with a different checksum on this rank, unless `own` equals the
/// checksums of rank 0.
void require_same_weights(const std::string& path, const std::deque<weight_file>& files,
                          const std::string& own, const std::string& of_rank_0);

/// Writes the tensors of a run to one file on rank 0 of the owners, in slabs of at most 1 MiB; each owner
/// sends its part of a slab.
class weights_writer {
 public:
  weights_writer(std::string path, communicator& owners, std::vector<held_tensor> held,
                 const io::save_options& as, comm_options o);

  /// Throws io_error on rank 0 if the file cannot be written.
  void open(io::file_calls& calls);
  /// Sends and writes all elements. Returns the error of this rank, which takes part in all messages even
  /// after an error.
  std::string write();

 private:
  /// Sends the boxes of all tensors to rank 0: their number, then offsets and extents. A tensor that a rank
  /// has no part of, or does not save, has none.
  void gather_boxes();
  /// The boxes of tensor `t` that `rank` holds; on rank 0.
  const std::vector<box>& boxes_of_rank(int rank, std::size_t t) const {
    return boxes_[static_cast<std::size_t>(rank) * held_.size() + t];
  }

  /// The bytes of the elements of the slab that this rank holds.
  static std::size_t own_bytes(const held_tensor& t, const box& slab);
  /// Copies the elements of the slab that this rank holds to `message_`, one box after the other.
  void copy_own(const held_tensor& t, const box& slab);
  void send() {
    if (!message_.empty()) owners_.send(bytes_in(message_), 0, 0, options_).wait();
  }
  void receive(int rank, const box& slab, std::size_t t);
  /// Copies `message_`, the part of the slab that `rank` holds, to its places.
  void place(const box& slab, int rank, std::size_t t);
  static elements bytes_in(std::vector<char>& v) {
    return {v.data(), static_cast<index_t>(v.size()), dtype::u8};
  }

  std::string path_;
  communicator& owners_;
  comm_options options_;
  std::vector<held_tensor> held_;
  std::optional<io::replacement_file> file_;  // on rank 0
  std::vector<std::vector<box>> boxes_;       // by rank and tensor, on rank 0
  std::vector<char> slab_, message_;
};

}  // namespace detail

/// Writes parameters and buffers of a bound model to one safetensors file, which `io::load`, load_weights,
/// torch and safetensors read; an existing file is replaced atomically. Rank 0 writes it; the others send it
/// their parts in pieces of at most 1 MiB, so that no rank needs more memory. Between two averagings of
/// `local_steps`, the parameters of the first ranks are written. The run's time-out must be longer than the
/// whole operation takes. `calls` are replaced in tests. Throws io_error on all ranks if the file cannot be
/// written, `path` has the extension of another format, or `options.as` is not a floating-point dtype.
/// Collective.
template <class Run>
void save_weights(const std::string& path, Run& run, io::save_options options = {},
                  io::file_calls& calls = io::system_calls()) {
  const comm_options o = run.groups().labelled("weights", true);
  std::optional<detail::weights_writer> writer;
  on_all_ranks(run.ranks(), o, [&] {
    if (!run.groups().is_first_copy()) return;
    writer.emplace(path, run.groups().owners(), run.held_tensors(), options, o);
    writer->open(calls);
  });
  const std::string failure = detail::agree(run.ranks(), writer ? writer->write() : "", o);
  if (!failure.empty()) throw io_error(failure);
}

/// Sets parameters and buffers of a bound model from a safetensors file, or the files of an index *.json,
/// which may contain more tensors and must be readable by all ranks. A rank reads the boxes that it holds,
/// through a buffer of 1 MiB, and one more if elements are converted. Throws io_error on all ranks, with
/// nothing changed, if a tensor is missing, has another shape, or has another dtype that `options` does not
/// convert, or if ranks read different files: the size, the header and a sample of 64 KiB of the elements of
/// each file are compared, not all elements, because no rank reads all of them. Collective.
template <class Run>
void load_weights(const std::string& path, Run& run, const io::load_options& options = {}) {
  const comm_options o = run.groups().labelled("weights", true);
  const std::vector<held_tensor> held = run.held_tensors();
  std::deque<detail::weight_file> files;
  std::vector<detail::tensor_in_file> wanted;
  std::string sums;
  on_all_ranks(run.ranks(), o, [&] {
    files = detail::weight_files(path, held, options);
    wanted = detail::tensors_in_files(path, files, held, options);
    if (run.ranks().size() > 1) sums = detail::sums_of_weights(path, files);
  });
  const std::string of_rank_0 = detail::text_of_rank(run.ranks(), sums, 0, o);
  on_all_ranks(run.ranks(), o, [&] { detail::require_same_weights(path, files, sums, of_rank_0); });
  on_all_ranks(run.ranks(), o, [&] {
    for (const detail::tensor_in_file& w : wanted)
      for (const stored_box& p : w.to->parts) io::read_shared(w.from, p, *w.to->local);
  });
  run.reload(true);  // the same elements on all ranks
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/train/impl/weights.ipp>
#endif

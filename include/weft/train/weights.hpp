// SPDX-License-Identifier: MIT
// Weights of a run from and to safetensors: each rank reads and sends the boxes that it holds, and no rank
// holds more of another's than 1 MiB.
//
//   auto model = gpt::create(config, where.deferred());
//   auto run = bind<plan>(model, optimizer, ranks);
//   load_weights("model.safetensors", run);
//   ...
//   save_weights("trained.safetensors", run);
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <weft/io/box_file.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/agreement.hpp>

namespace weft {

namespace detail {

/// A tensor of a rank, and the file that holds the whole.
struct tensor_in_file {
  const held_tensor* to;
  io::box_in_file from;
};

/// Where the tensors of a run are in a file. Throws io_error, naming file and tensor, if one is not there or
/// has another type or shape.
inline std::vector<tensor_in_file> tensors_in_file(const io::safetensors_header& header,
                                                   const io::input_file& file,
                                                   const std::vector<held_tensor>& held) {
  std::map<std::string_view, const io::tensor_entry*> entries;
  for (const io::tensor_entry& e : header.tensors) entries[e.name] = &e;
  std::vector<tensor_in_file> all;
  for (const held_tensor& t : held) {
    const auto found = entries.find(t.name);
    if (found == entries.end())
      throw io_error("weft: " + file.path() + ": tensor " + t.name + " is missing");
    const io::tensor_entry& e = *found->second;
    if (e.type != t.whole.type || !(parallel::in_rows(e.extents) == parallel::in_rows(t.whole.extents)))
      throw io_error("weft: " + file.path() + ": tensor " + t.name + " is " + name_of(e.type) + " " +
                     to_string(e.extents) + ", the model wants " + name_of(t.whole.type) + " " +
                     to_string(t.whole.extents));
    const box whole = whole_box(parallel::in_rows(e.extents));
    if (t.local) all.push_back({&t, {file, header.data + e.begin, whole, {}, t.name}});
  }
  return all;
}

}  // namespace detail

/// Sets parameters and buffers of a bound model from the file, which may hold more and must be readable by
/// all ranks. A rank reads the boxes that it holds, through a buffer of 1 MiB. Throws io_error on all ranks,
/// with nothing changed, if a tensor is missing or has another type or shape. Collective.
template <class Run>
void load_weights(const std::string& path, Run& run) {
  const comm_options o = run.groups().labelled("weights", true);
  const std::vector<held_tensor> held = run.held_tensors();
  std::vector<detail::tensor_in_file> wanted;
  std::optional<io::input_file> file;
  on_all_ranks(run.ranks(), o, [&] {
    file.emplace(path);
    const io::safetensors_header header =
        io::parse_safetensors_header(io::safetensors_beginning(*file), file->size(), path);
    wanted = detail::tensors_in_file(header, *file, held);
  });
  on_all_ranks(run.ranks(), o, [&] {
    for (const detail::tensor_in_file& w : wanted) io::read_shared(w.from, w.to->part, *w.to->local);
  });
  run.reload();
}

}  // namespace weft

// SPDX-License-Identifier: MIT
// Weights from safetensors into a run: each rank reads the rows that it holds, and no others.
//
//   auto model = gpt::create(config, where.deferred());
//   auto run = bind<plan>(model, optimizer, ranks);
//   load_weights("model.safetensors", run);
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <weft/io/safetensors.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/agreement.hpp>

namespace weft {

namespace detail {
/// A tensor of a rank, and where its elements are in a file.
struct file_rows {
  const std::string* name;
  tensor_state* to;
  std::uint64_t at;
};

/// Where `local`, rows of a parameter or a whole buffer, is in the file. Throws io_error, naming file and
/// tensor, if it is not there or has another type or shape.
template <class Run>
std::vector<file_rows> rows_in_file(const io::safetensors_header& header, const std::string& path,
                                    const state_dict_t& local, const Run& run) {
  std::vector<file_rows> all;
  for (const auto& [name, t] : local) {
    const auto found = std::find_if(header.tensors.begin(), header.tensors.end(),
                                    [&, n = &name](const io::tensor_entry& e) { return e.name == *n; });
    if (found == header.tensors.end())
      throw io_error("weft: " + path + ": tensor " + name + " is missing");
    const auto [first_row, whole] = run.parallel().place_of(name);
    if (found->type != t->type || !(parallel::in_rows(found->extents) == whole))
      throw io_error("weft: " + path + ": tensor " + name + " is " + name_of(found->type) + " " +
                     to_string(found->extents) + ", the model wants " + name_of(t->type) + " " +
                     to_string(whole));
    const auto rows = static_cast<std::uint64_t>(std::max<index_t>(whole[0], 1));
    all.push_back({&name, t.get(),
                   header.data + found->begin +
                       (found->end - found->begin) / rows * static_cast<std::uint64_t>(first_row)});
  }
  return all;
}
}  // namespace detail

/// Sets parameters and buffers of a bound model from the file, which may hold more and must be readable by
/// all ranks. A rank reads its rows of what is divided; memory for the largest of them is all it needs.
/// Throws io_error on all ranks, with nothing changed, if a tensor is missing or has another type or shape.
/// Collective.
template <class Run>
void load_weights(const std::string& path, Run& run) {
  const comm_options o = run.groups().labelled("weights", true);
  std::vector<detail::file_rows> wanted;
  std::optional<io::input_file> file;
  on_all_ranks(run.ranks(), o, [&] {
    file.emplace(path);
    const io::safetensors_header header =
        io::parse_safetensors_header(io::safetensors_beginning(*file), file->size(), path);
    for (const state_dict_t* some : {&run.local(), &run.parallel().buffers()}) {
      const auto rows = detail::rows_in_file(header, path, *some, run);
      wanted.insert(wanted.end(), rows.begin(), rows.end());
    }
  });
  on_all_ranks(run.ranks(), o, [&] {
    io::stored_tensor rows;
    for (const detail::file_rows& w : wanted) {
      rows.type = w.to->type;
      rows.extents = w.to->extents;
      rows.bytes.resize(w.to->bytes());
      file->read(w.at, rows.bytes.data(), rows.bytes.size());
      io::restore(path, *w.name, rows, *w.to);
    }
  });
  run.reload();
}

}  // namespace weft

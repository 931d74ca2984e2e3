// SPDX-License-Identifier: MIT
// Definitions of <weft/io/pt.hpp>.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/io/pt.hpp>

namespace weft {
namespace io {
namespace detail {

inline constexpr std::string_view pt_pickle = "/data.pkl";
inline constexpr int max_pt_depth = 32;
inline constexpr std::uint64_t max_pt_growth = 64;  // limits tensors that share elements, and names

WEFT_DEFINE std::string pt_folder(const zip_file& zip) {
  for (const auto& [name, m] : zip.members())
    if (name.ends_with(pt_pickle) && name.find('/') == name.size() - pt_pickle.size())
      return name.substr(0, name.size() - pt_pickle.size());
  return {};
}

WEFT_DEFINE pt_reader::pt_reader(const zip_file& zip, const name_filter& wanted)
    : zip_(zip),
      wanted_(wanted),
      folder_(pt_folder(zip)),
      pickle_(text_of("data.pkl"), zip.path() + ": data.pkl"),
      is_big_endian_(is_big_endian()) {}

WEFT_DEFINE std::string pt_reader::text_of(const std::string& member) const {
  if (zip_.find(folder_ + "/constants.pkl"))
    fail("is a TorchScript archive: torch.save(module.state_dict(), file) saves its tensors");
  const zip_member* const m = zip_.find(folder_ + "/" + member);
  if (!m) fail("has no " + member + ": it was not written by torch.save");
  if (m->size > max_pickle) fail(member + " is larger than 64 MiB");
  if (m->size > zip_.size())  // torch.save does not compress it, and its values take many times its bytes
    fail(member + " has " + std::to_string(m->size) + " bytes when inflated, but the file has " +
         std::to_string(zip_.size()));
  const std::vector<char> bytes = zip_.read(*m);
  return {bytes.begin(), bytes.end()};
}

WEFT_DEFINE bool pt_reader::is_big_endian() const {
  if (!zip_.find(folder_ + "/byteorder")) return false;
  const std::string order = text_of("byteorder");
  if (order != "little" && order != "big") fail("byteorder is neither little nor big");
  return order == "big";
}

WEFT_DEFINE void pt_reader::spend(std::uint64_t bytes) {
  spent_ += bytes;
  if (spent_ > max_pt_growth * pickle_.bytes() + 4096)
    fail("data.pkl refers to its values too often, or its names are too long");
}

WEFT_DEFINE stored_tensors pt_reader::read() {
  visit("", pickle_.root(), 0);
  for (const auto& [key, views] : storages_) read_storage(key, views);
  return std::move(all_);
}

WEFT_DEFINE void pt_reader::visit(const std::string& name, const pickle_value& value, int depth) {
  if (depth > max_pt_depth) fail("data.pkl is nested too deeply");
  if (value.kind() == pickle_kind::call) return visit_call(name, value);
  const bool is_dict = value.kind() == pickle_kind::dict;
  if (!is_dict && value.kind() != pickle_kind::list && value.kind() != pickle_kind::tuple) return;
  spend(1 + value.size());
  const std::vector<pickle_value> items = value.items();
  for (std::size_t i = 0; i < items.size(); i += is_dict ? 2 : 1) {
    const pickle_value &key = items[i], &item = items[is_dict ? i + 1 : i];
    const bool has_key = key.kind() == pickle_kind::text || key.integer();
    if (is_dict ? !has_key : item.kind() < pickle_kind::tuple) continue;  // numbers in lists have no name
    const std::string part = is_dict ? *key.scalar() : std::to_string(i);
    const std::string full = name.empty() ? part : name + "." + part;
    spend(full.size());
    if (const auto scalar = item.scalar()) {
      spend(scalar->size());
      all_.metadata.insert_or_assign(full, *scalar);
    } else {
      visit(full, item, depth + 1);
    }
  }
}

WEFT_DEFINE void pt_reader::visit_call(const std::string& name, const pickle_value& value) {
  if (wanted_ && !wanted_(name)) return;
  spend(value.size());
  std::vector<pickle_value> items = value.items();
  if (items[0].text().ends_with("_rebuild_parameter")) {  // a parameter, which wraps a tensor
    if (items.size() != 4 || items[1].kind() != pickle_kind::call) fail_at(name, "is malformed");
    spend(items[1].size());
    items = items[1].items();
  }
  add_tensor(name, items);
}

WEFT_DEFINE void pt_reader::add_tensor(const std::string& name, const std::vector<pickle_value>& items) {
  // The function, then: storage, offset, size, strides, requires_grad, hooks, dtype (v3), bits.
  const bool has_type = items[0].text().ends_with("_rebuild_tensor_v3");
  const std::size_t fewest = has_type ? 8 : 7;
  if (items[0].text().ends_with("_rebuild_parameter") || items.size() < fewest || items.size() > fewest + 1 ||
      items[1].kind() != pickle_kind::storage || items[3].size() != items[4].size())
    fail_at(name, "is malformed");
  // "storage", its type, its key, a device, and the number of its elements or, without a type, bytes.
  if (items[1].size() != 5) fail_at(name, "its storage is malformed");
  const std::vector<pickle_value> storage = items[1].items();
  if (storage[0].text() != "storage" || storage[2].kind() != pickle_kind::text)
    fail_at(name, "its storage is malformed");
  const torch_type* const type = find_torch_type((has_type ? items[7] : storage[1]).text());
  if (!type) fail_at(name, "its dtype is malformed");
  if (!type->type)
    return leave_out(name, std::string("is of dtype ") + type->name + ", which weft does not support");
  if (items[3].size() > static_cast<std::size_t>(max_order))
    return leave_out(name, "has " + std::to_string(items[3].size()) +
                               " dims, but tensors of weft have at most " + std::to_string(max_order));
  if (items.size() > fewest)
    if (const std::string bit = set_bit(name, items[fewest]); !bit.empty())
      return leave_out(name, "has PyTorch's bit " + bit + " set: save x.resolve_" + bit + "()");
  view v{name, *type->type, {}, {}, size_in(name, items[2])};
  const std::vector<pickle_value> extents = items[3].items(), strides = items[4].items();
  for (std::size_t d = 0; d < extents.size(); ++d) {
    v.strides.of[d] = size_in(name, strides[d]);
    v.extents.append(size_in(name, extents[d]));
  }
  const std::string key(storage[2].text());
  const zip_member* const m = zip_.find(folder_ + "/data/" + key);
  const index_t size = size_of(v.type), per_count = has_type ? 1 : size;
  if (!m ||
      static_cast<std::uint64_t>(size_in(name, storage[4])) !=
          m->size / static_cast<std::uint64_t>(per_count) ||
      m->size % static_cast<std::uint64_t>(size) != 0)
    fail_at(name, "its storage " + key + " is missing or has the wrong size");
  const auto count = static_cast<index_t>(m->size / static_cast<std::uint64_t>(size));
  require_within(v, count);
  if (v.extents.size() > count)
    return leave_out(name, "has more elements than are stored: for an expanded tensor, save x.clone()");
  bytes_ += static_cast<std::uint64_t>(v.extents.size() * size);
  if (bytes_ > max_pt_growth * zip_.size())
    fail("its tensors have more than 64 times as many bytes as the file");
  storages_[key].push_back(std::move(v));
}

WEFT_DEFINE std::string pt_reader::set_bit(const std::string& tensor, const pickle_value& bits) {
  if (bits.kind() == pickle_kind::none) return {};
  if (bits.kind() != pickle_kind::dict) fail_at(tensor, "is malformed");
  spend(bits.size());
  const std::vector<pickle_value> items = bits.items();
  for (std::size_t i = 0; i < items.size(); i += 2) {
    if (items[i].kind() != pickle_kind::text || items[i + 1].kind() != pickle_kind::boolean)
      fail_at(tensor, "is malformed");
    if (items[i + 1].scalar() == "true") return std::string(items[i].text());
  }
  return {};
}

WEFT_DEFINE void pt_reader::leave_out(const std::string& name, std::string why) {
  if (!all_.others.emplace(name, std::move(why)).second) fail_at(name, "occurs twice");
}

WEFT_DEFINE index_t pt_reader::size_in(const std::string& tensor, const pickle_value& value) const {
  const auto n = value.integer();
  if (!n || *n < 0) fail_at(tensor, "a size is not an unsigned integer of 63 bits");
  return *n;
}

WEFT_DEFINE void pt_reader::require_within(const view& v, index_t count) const {
  bool fits = true, is_empty = false;
  index_t elements = 1, last = v.offset;
  for (int d = 0; d < v.extents.order; ++d) {
    is_empty |= v.extents[d] == 0;
    index_t reach = 0;
    fits &= !__builtin_mul_overflow(elements, v.extents[d], &elements) &&
            !__builtin_mul_overflow(v.extents[d] - 1, v.strides.of[d], &reach) &&
            !__builtin_add_overflow(last, reach, &last);
  }
  if (!is_empty && (!fits || last >= count)) fail_at(v.name, "reaches beyond its storage");
}

WEFT_DEFINE void pt_reader::read_storage(const std::string& key, const std::vector<view>& views) {
  std::vector<char> bytes = zip_.read(*zip_.find(folder_ + "/data/" + key));
  if (is_big_endian_) reverse_elements(bytes.data(), bytes.size(), size_of(views[0].type));
  for (const view& v : views) {
    stored_tensor t{v.type, v.extents, {}};
    const std::size_t size = bytes_of(v.extents, v.type);
    if (size_of(v.type) != size_of(views[0].type)) fail_at(v.name, "its storage has elements of two sizes");
    if (&v == &views.back() && size == bytes.size() && is_row_major(v.extents, v.strides)) {
      t.bytes = std::move(bytes);
    } else {
      t.bytes.resize(size);
      if (size > 0)
        copy_row_major(bytes.data() + v.offset * size_of(v.type), v.extents, v.strides, size_of(v.type),
                       t.bytes.data());
    }
    if (all_.others.contains(v.name) || !all_.tensors.emplace(v.name, std::move(t)).second)
      fail_at(v.name, "occurs twice");
  }
}

}  // namespace detail

WEFT_DEFINE stored_tensors read_pt(const std::string& path, const name_filter& wanted) {
  char first[4]{};
  const input_file file(path);
  file.read(0, first, static_cast<std::size_t>(std::min<std::uint64_t>(4, file.size())));
  if (std::string_view(first, 4) == detail::pt_legacy_magic)
    refuse<io_error>(
        {"weft: ", path,
         ": was written by torch.save before PyTorch 1.6: load it in PyTorch and save it again"});
  const zip_file zip(path);
  return detail::pt_reader(zip, wanted).read();
}

}  // namespace io
}  // namespace weft

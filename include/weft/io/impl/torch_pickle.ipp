// SPDX-License-Identifier: MIT
// Definitions of <weft/io/torch_pickle.hpp>.
#pragma once

#include <algorithm>
#include <charconv>

#include <weft/base/config.hpp>
#include <weft/base/little_endian.hpp>
#include <weft/io/json_parser.hpp>
#include <weft/io/torch_pickle.hpp>

namespace weft {
namespace io {
namespace detail {

inline constexpr torch_type torch_types[] = {{"float64", "DoubleStorage", dtype::f64},
                                             {"float32", "FloatStorage", dtype::f32},
                                             {"bfloat16", "BFloat16Storage", dtype::bf16},
                                             {"float16", "HalfStorage", dtype::f16},
                                             {"int64", "LongStorage", dtype::i64},
                                             {"int32", "IntStorage", dtype::i32},
                                             {"uint8", "ByteStorage", dtype::u8},
                                             {"bool", "BoolStorage", dtype::boolean},
                                             {"int16", "ShortStorage"},
                                             {"int8", "CharStorage"},
                                             {"uint64", ""},
                                             {"uint32", ""},
                                             {"uint16", ""},
                                             {"complex128", "ComplexDoubleStorage"},
                                             {"complex64", "ComplexFloatStorage"},
                                             {"complex32", ""},
                                             {"float8_e4m3fn", ""},
                                             {"float8_e5m2", ""},
                                             {"float8_e4m3fnuz", ""},
                                             {"float8_e5m2fnuz", ""},
                                             {"float8_e8m0fnu", ""},
                                             {"float4_e2m1fn_x2", ""}};

/// The functions whose calls become values.
inline constexpr std::string_view known_functions[] = {"torch._utils\n_rebuild_tensor_v2",
                                                       "torch._utils\n_rebuild_tensor_v3",
                                                       "torch._utils\n_rebuild_parameter"};

WEFT_DEFINE const torch_type* find_torch_type(std::string_view name) {
  constexpr std::string_view module = "torch\n";
  if (!name.starts_with(module) || name == module) return nullptr;
  name.remove_prefix(module.size());
  for (const torch_type& t : torch_types)
    if (name == t.name || name == t.storage) return &t;
  return nullptr;
}

WEFT_DEFINE pickle_nodes torch_pickle_parser::parse() {
  if (text_.size() > max_pickle) fail("larger than 64 MiB");
  if (number(1) != 0x80) fail("does not start with its protocol");
  if (const auto protocol = number(1); protocol != 2)
    fail("uses protocol " + std::to_string(protocol) +
         ", but weft reads only 2, which torch.save writes by default");
  while (step()) {}
  all_.root = pop();
  if (!stack_.empty() || at_ != text_.size()) fail("continues after the value");
  return std::move(all_);
}

WEFT_DEFINE std::string_view torch_pickle_parser::take(std::size_t bytes) {
  if (bytes > text_.size() - at_) fail("ends early");
  at_ += bytes;
  return std::string_view(text_).substr(at_ - bytes, bytes);
}

WEFT_DEFINE std::uint64_t torch_pickle_parser::number(std::size_t bytes) {
  return weft::detail::little_endian(take(bytes));
}

WEFT_DEFINE bool torch_pickle_parser::step() {
  const std::uint64_t instruction = number(1);
  switch (instruction) {
    case '.': return false;
    case '(': stack_.push_back(mark); break;
    case 'N': push(pickle_kind::none); break;
    case 0x88: push(pickle_kind::boolean, 1); break;
    case 0x89: push(pickle_kind::boolean, 0); break;
    case 'K': push(pickle_kind::integer, static_cast<std::int64_t>(number(1))); break;
    case 'M': push(pickle_kind::integer, static_cast<std::int64_t>(number(2))); break;
    case 'J': push(pickle_kind::integer, static_cast<std::int32_t>(number(4))); break;
    case 0x8a: push_integer(); break;
    case 'G': push(pickle_kind::real, static_cast<std::int64_t>(__builtin_bswap64(number(8)))); break;
    case 'X': push_text(); break;
    case 'c': push_name(); break;
    case ')': push(pickle_kind::tuple); break;
    case ']': push(pickle_kind::list); break;
    case '}': push(pickle_kind::dict); break;
    case 't': {
      const std::size_t begin = above_mark();
      stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(begin) - 1);
      put_tuple(begin - 1);
      break;
    }
    case 0x85:
    case 0x86:
    case 0x87: {
      const std::size_t size = instruction - 0x84;
      if (stack_.size() < size) fail("takes a value that is not there");
      put_tuple(stack_.size() - size);
      break;
    }
    case 'a': move_to(pickle_kind::list, stack_.size() - 1); break;
    case 's': move_to(pickle_kind::dict, stack_.size() - 2); break;
    case 'e':
    case 'u': {
      const std::size_t begin = above_mark();
      stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(begin) - 1);
      move_to(instruction == 'e' ? pickle_kind::list : pickle_kind::dict, begin - 1);
      break;
    }
    case 'q': remember(number(1)); break;
    case 'r': remember(number(4)); break;
    case 'h': recall(number(1)); break;
    case 'j': recall(number(4)); break;
    case 'Q': {
      const std::uint32_t id = pop();
      if (all_.nodes[id].kind != pickle_kind::tuple) fail("a storage is not described by a tuple");
      pickle_node storage = all_.nodes[id];
      storage.kind = pickle_kind::storage;
      all_.nodes.push_back(storage);
      stack_.push_back(static_cast<std::uint32_t>(all_.nodes.size() - 1));
      break;
    }
    case 'R': call(); break;
    case 'b':  // sets attributes, such as the versions of modules in an OrderedDict
      pop();
      top(pickle_kind::dict);
      break;
    default:
      fail("instruction " + std::to_string(instruction) + ", which torch.save does not write for tensors");
  }
  return true;
}

WEFT_DEFINE void torch_pickle_parser::push_integer() {
  const auto bytes = static_cast<std::size_t>(number(1));
  if (bytes > 8) {
    take(bytes);
    return push(pickle_kind::other);
  }
  std::uint64_t n = number(bytes);
  if (bytes > 0 && bytes < 8 && n >> (8 * bytes - 1)) n -= std::uint64_t{1} << 8 * bytes;  // negative
  push(pickle_kind::integer, static_cast<std::int64_t>(n));
}

WEFT_DEFINE void torch_pickle_parser::push_text() {
  const auto bytes = static_cast<std::size_t>(number(4));
  const std::size_t begin = at_;
  if (!is_utf8(take(bytes))) fail("a string is not UTF-8");
  push(pickle_kind::text);
  all_.nodes.back().first = static_cast<std::uint32_t>(begin);
  all_.nodes.back().size = static_cast<std::uint32_t>(bytes);
}

WEFT_DEFINE void torch_pickle_parser::push_name() {
  const std::size_t begin = at_;
  for (int i = 0; i < 2; ++i) {
    const std::size_t end = text_.find('\n', at_);
    if (end == text_.npos) fail("ends early");
    at_ = end + 1;
  }
  const std::string_view name = std::string_view(text_).substr(begin, at_ - 1 - begin);
  const bool known =
      std::find(std::begin(known_functions), std::end(known_functions), name) != std::end(known_functions) ||
      name == "collections\nOrderedDict" || name == "torch\nSize" || name == "torch\ndevice" ||
      name == "torch.storage\nUntypedStorage" || find_torch_type(name);
  if (!known) {
    std::string shown(name.substr(0, 100));
    std::replace(shown.begin(), shown.end(), '\n', '.');
    fail("names " + shown +
         ", which weft does not read: torch.save(model.state_dict(), file) writes only tensors");
  }
  push(pickle_kind::name);
  all_.nodes.back().first = static_cast<std::uint32_t>(begin);
  all_.nodes.back().size = static_cast<std::uint32_t>(name.size());
}

WEFT_DEFINE std::uint32_t torch_pickle_parser::add(pickle_kind kind, std::int64_t bits) {
  all_.nodes.push_back({kind, 0, 0, 0, bits});
  return static_cast<std::uint32_t>(all_.nodes.size() - 1);
}

WEFT_DEFINE std::uint32_t torch_pickle_parser::pop() {
  if (stack_.empty() || stack_.back() == mark) fail("takes a value that is not there");
  const std::uint32_t node = stack_.back();
  stack_.pop_back();
  return node;
}

WEFT_DEFINE std::uint32_t torch_pickle_parser::top(pickle_kind kind) {
  if (stack_.empty() || stack_.back() == mark || all_.nodes[stack_.back()].kind != kind)
    fail("changes a value of another kind");
  return stack_.back();
}

WEFT_DEFINE void torch_pickle_parser::append(std::uint32_t container, std::uint32_t value) {
  const auto link = static_cast<std::uint32_t>(all_.links.size());
  all_.links.push_back({value, 0});
  pickle_node& to = all_.nodes[container];
  if (to.size++ == 0) to.first = link;
  else all_.links[to.last].next = link;
  to.last = link;
}

WEFT_DEFINE std::size_t torch_pickle_parser::above_mark() const {
  for (std::size_t i = stack_.size(); i-- > 0;)
    if (stack_[i] == mark) return i + 1;
  fail("takes values up to a mark that is not there");
}

WEFT_DEFINE void torch_pickle_parser::put_tuple(std::size_t begin) {
  const std::uint32_t tuple = add(pickle_kind::tuple);
  for (std::size_t i = begin; i < stack_.size(); ++i) {
    if (stack_[i] == mark) fail("takes a value that is not there");
    append(tuple, stack_[i]);
  }
  stack_.resize(begin);
  stack_.push_back(tuple);
}

WEFT_DEFINE void torch_pickle_parser::move_to(pickle_kind kind, std::size_t begin) {
  if (begin == 0 || begin > stack_.size()) fail("takes a value that is not there");
  const std::vector<std::uint32_t> values(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
  stack_.resize(begin);
  const std::uint32_t to = top(kind);
  if (kind == pickle_kind::dict && values.size() % 2) fail("a key without a value");
  for (const std::uint32_t v : values) {
    if (v == mark) fail("takes a value that is not there");
    append(to, v);
  }
}

WEFT_DEFINE void torch_pickle_parser::remember(std::uint64_t index) {
  if (index > text_.size()) fail("stores more values than it has");
  const std::uint32_t value = pop();
  stack_.push_back(value);
  if (memo_.size() <= index) memo_.resize(static_cast<std::size_t>(index) + 1, mark);
  memo_[static_cast<std::size_t>(index)] = value;
}

WEFT_DEFINE void torch_pickle_parser::recall(std::uint64_t index) {
  if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)] == mark)
    fail("recalls a value that it has not stored");
  stack_.push_back(memo_[static_cast<std::size_t>(index)]);
}

WEFT_DEFINE void torch_pickle_parser::call() {
  const std::uint32_t arguments = pop(), function = pop();
  const pickle_node to = all_.nodes[function], from = all_.nodes[arguments];
  if (to.kind != pickle_kind::name || from.kind != pickle_kind::tuple)
    fail("calls something that is not a function");
  const std::string_view name = std::string_view(text_).substr(to.first, to.size);
  if (name == "collections\nOrderedDict" && from.size == 0) return push(pickle_kind::dict);
  if (name == "torch\nSize" && from.size == 1) return stack_.push_back(all_.links[from.first].node);
  if (name == "torch\ndevice") return push(pickle_kind::other);
  if (std::find(std::begin(known_functions), std::end(known_functions), name) == std::end(known_functions))
    fail("calls something that is not a function");
  const std::uint32_t value = add(pickle_kind::call);
  append(value, function);
  all_.links.back().next = from.first;
  all_.nodes[value].size += from.size;
  stack_.push_back(value);
}

}  // namespace detail

WEFT_DEFINE std::string_view pickle_value::text() const {
  if (kind() != pickle_kind::text && kind() != pickle_kind::name) return {};
  return std::string_view(of_->text_).substr(node().first, node().size);
}

WEFT_DEFINE std::optional<std::string> pickle_value::scalar() const {
  char number[32];
  switch (kind()) {
    case pickle_kind::boolean: return node().bits ? "true" : "false";
    case pickle_kind::integer: return std::to_string(node().bits);
    case pickle_kind::real:
      return std::string(
          number, std::to_chars(number, number + sizeof number, std::bit_cast<double>(node().bits)).ptr);
    case pickle_kind::text: return std::string(text());
    default: return {};
  }
}

WEFT_DEFINE std::vector<pickle_value> pickle_value::items() const {
  std::vector<pickle_value> all;
  all.reserve(size());
  for (std::uint32_t i = 0, link = node().first; i < size(); ++i, link = of_->all_.links[link].next)
    all.push_back({*of_, of_->all_.links[link].node});
  return all;
}

}  // namespace io
}  // namespace weft

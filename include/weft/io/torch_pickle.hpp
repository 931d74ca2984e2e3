// SPDX-License-Identifier: MIT
// The pickles in files of torch.save, as values: nothing in them is executed.
//
//   const io::torch_pickle pickle(bytes, "model.pt");
//   for (const io::pickle_value& v : pickle.root().items()) ...
//
// A pickle is a program for a stack machine that names Python functions to be called. This machine supports
// only the instructions that torch.save writes (protocol 2) and the names of tensors, storages, dtypes and
// OrderedDict; any other name is an error, and function calls become values of the kind `call`. Pickles are
// untrusted: time is linear in the bytes, memory at most 100 times the bytes.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/base/dtype.hpp>
#include <weft/base/error.hpp>

namespace weft::io {

/// The kind of a value in a pickle. `other`: a value that is not needed here, such as a device or an integer
/// of more than 64 bits.
enum class pickle_kind { none, boolean, integer, real, text, other, tuple, list, dict, name, storage, call };

namespace detail {

/// A dtype of torch and its storage's name, empty if there is none.
struct torch_type {
  const char* name;
  const char* storage;
  std::optional<dtype> type{};  // nullopt: weft has no such dtype
};
/// The type whose dtype or storage is called `name`; null if there is none.
const torch_type* find_torch_type(std::string_view name);

/// A value. A container has its first and last link, and the number of its values: for a dict keys and values
/// alternately, for a storage the persistent id that torch.save writes, for a call the function and its
/// arguments. A text has its position and size.
struct pickle_node {
  pickle_kind kind = pickle_kind::none;
  std::uint32_t first = 0, last = 0, size = 0;
  std::int64_t bits = 0;  // value of a boolean, an integer or a real
};
struct pickle_link {
  std::uint32_t node = 0, next = 0;
};
struct pickle_nodes {
  std::vector<pickle_node> nodes;
  std::vector<pickle_link> links;
  std::uint32_t root = 0;
};
inline constexpr std::size_t max_pickle = std::size_t{1} << 26;

class torch_pickle_parser {
 public:
  torch_pickle_parser(const std::string& text, const std::string& what) : text_(text), what_(what) {}

  pickle_nodes parse();

 private:
  static constexpr std::uint32_t mark = 0xffffffff;

  [[noreturn]] void fail(const std::string& why) const {
    throw io_error("weft: " + what_ + ": pickle at byte " + std::to_string(at_) + ": " + why);
  }

  std::string_view take(std::size_t bytes);
  std::uint64_t number(std::size_t bytes);

  /// Executes one instruction. False if it is the last one.
  bool step();
  void push_integer();
  void push_text();
  void push_name();

  std::uint32_t add(pickle_kind kind, std::int64_t bits = 0);
  void push(pickle_kind kind, std::int64_t bits = 0) { stack_.push_back(add(kind, bits)); }
  std::uint32_t pop();
  /// The value on top of the stack after pops, which stays there; must be of kind `kind`.
  std::uint32_t top(pickle_kind kind);
  void append(std::uint32_t container, std::uint32_t value);
  /// The stack index at which the values above the last mark begin.
  std::size_t above_mark() const;
  void put_tuple(std::size_t begin);
  void move_to(pickle_kind kind, std::size_t begin);
  void remember(std::uint64_t index);
  void recall(std::uint64_t index);
  void call();

  const std::string& text_;
  const std::string& what_;
  std::size_t at_ = 0;
  pickle_nodes all_;
  std::vector<std::uint32_t> stack_, memo_;
};

}  // namespace detail

class torch_pickle;

/// A value of a pickle; refers to the `torch_pickle` object, which must outlive it.
class pickle_value {
 public:
  pickle_kind kind() const { return node().kind; }
  /// The text, or a Python name with a line break instead of the last dot; empty for other values.
  std::string_view text() const;
  /// The number of an integer; nullopt for other values.
  std::optional<std::int64_t> integer() const {
    if (kind() != pickle_kind::integer) return {};
    return node().bits;
  }
  /// A boolean, integer, real or text as a text; nullopt for other values.
  std::optional<std::string> scalar() const;
  /// Number of values of a container, counting both keys and values of a dict; 0 for other values.
  std::size_t size() const {
    return kind() < pickle_kind::tuple || kind() == pickle_kind::name ? 0 : node().size;
  }
  /// The values of a container, for a dict keys and values alternately; for a storage the persistent id that
  /// torch.save writes; for a call the function and its arguments.
  std::vector<pickle_value> items() const;

 private:
  friend torch_pickle;
  pickle_value(const torch_pickle& of, std::uint32_t index) : of_(&of), index_(index) {}
  const detail::pickle_node& node() const;

  const torch_pickle* of_;
  std::uint32_t index_;
};

/// A parsed pickle.
class torch_pickle {
 public:
  /// Parses a pickle of torch.save. Throws io_error, with `what` as its name, if it is malformed, larger than
  /// 64 MiB, or has a name or an instruction that torch.save does not write for tensors.
  torch_pickle(std::string text, const std::string& what)
      : text_(std::move(text)), all_(detail::torch_pickle_parser(text_, what).parse()) {}

  pickle_value root() const { return {*this, all_.root}; }
  /// Size in bytes.
  std::size_t bytes() const { return text_.size(); }

 private:
  friend pickle_value;
  std::string text_;
  detail::pickle_nodes all_;
};

inline const detail::pickle_node& pickle_value::node() const { return of_->all_.nodes[index_]; }

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/torch_pickle.ipp>
#endif

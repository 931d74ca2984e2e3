// SPDX-License-Identifier: MIT
// The parts of an ONNX file, which are nodes, initializers, inputs and outputs, and how they are written.
//
//   onnx::operator_graph g;
//   g.add_input("x", dtype::f32, {onnx::dimension(2), onnx::dimension("batch")});
//   g.add_output("y", g.apply("Relu", {"x"}), dtype::f32, {onnx::dimension(2), onnx::dimension("batch")});
//   g.write("relu.onnx");
//
// Opset 18, in which ScatterElements adds, Pad has axes and reductions take them as an operand; read by ONNX
// Runtime since 1.14. IR version 8, which belongs to that opset.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <weft/base/dtype.hpp>
#include <weft/io/files.hpp>
#include <weft/io/stored_tensor.hpp>
#include <weft/onnx/protobuf.hpp>

namespace weft::onnx {

/// The opset and the format version of the files that are written.
inline constexpr int opset = 18, ir_version = 8;

/// The number of an element type in ONNX files.
constexpr std::int64_t number_of_type(dtype t) {
  switch (t) {
    case dtype::f64: return 11;
    case dtype::f32: return 1;
    case dtype::bf16: return 16;
    case dtype::f16: return 10;
    case dtype::i64: return 7;
    case dtype::i32: return 6;
    case dtype::u8: return 2;
    default: return 9;
  }
}

/// Names of values.
using names = std::vector<std::string>;
/// Numbers of an attribute.
using integers = std::vector<std::int64_t>;

/// An attribute of a node.
class attribute {
 public:
  attribute(const char* name, std::int64_t value);
  attribute(const char* name, float value);
  attribute(const char* name, const char* value);
  attribute(const char* name, const integers& value);

  const protobuf_message& message() const { return message_; }

 private:
  attribute(const char* name, int type);
  protobuf_message message_;
};
/// The attributes of a node.
using attribute_list = std::vector<attribute>;

/// An extent of an input or output: a number, or a name, which stands for any number; dyn if unspecified.
struct dimension {
  index_t number = dyn;
  std::string name{};

  dimension(index_t n) : number(n) {}
  dimension(std::string symbol) : name(std::move(symbol)) {}
};

/// Where the elements of initializers are written.
enum class tensor_storage : std::uint8_t {
  in_file,         // in the model's file, which Protocol Buffers limit to 2 GiB
  in_another_file  // in FILE.data beside it, except for tensors of less than 1 KiB
};

/// A graph, or the body of a node that has one. Equal nodes become one node, and nodes that no output needs
/// are not written.
class operator_graph {
 public:
  operator_graph() = default;
  /// A body in `outer`, whose values its nodes may read.
  explicit operator_graph(operator_graph& outer) : root_(outer.root_) {}
  operator_graph(const operator_graph&) = delete;
  operator_graph& operator=(const operator_graph&) = delete;

  /// Makes `name` the name of one value. Throws value_error if the name is already used, is empty or is not
  /// UTF-8. `what`: the kind of the value, such as "input", for the message.
  void reserve(const std::string& name, const char* what);
  /// A new name that begins with `base`.
  std::string new_name(const std::string& base);

  /// The outputs of operator `op`, `results` of them. An omitted operand has an empty name.
  names apply_all(const std::string& op, const names& operands, const attribute_list& attributes,
                  int results);
  /// The output of operator `op`.
  std::string apply(const std::string& op, const names& operands, const attribute_list& attributes = {}) {
    return apply_all(op, operands, attributes, 1)[0];
  }
  /// The outputs of a Scan over `body`. Its operands and outputs are first states, then sequences.
  names scan(std::shared_ptr<operator_graph> body, const names& operands, const attribute_list& attributes,
             int results);

  /// A constant; equal constants have the same name.
  std::string constant(io::stored_tensor value);
  /// i64 numbers [n].
  std::string constant(const integers& values);

  /// An input, whose name must be reserved.
  void add_input(const std::string& name, dtype type, std::vector<dimension> extents);
  /// A tensor of the file, whose name must be reserved.
  void add_initializer(const std::string& name, io::stored_tensor value);
  /// An output, whose name must be reserved, with the value `of`.
  void add_output(const std::string& name, const std::string& of, dtype type, std::vector<dimension> extents);

  /// Writes the file, replacing an existing one atomically. With elements in another file, each of the two
  /// files is replaced atomically after both are on the disk, and in between there is no file `path`, so a
  /// model is never beside the elements of another one. Throws io_error on failure, value_error if the file
  /// would be too large.
  void write(const std::string& path, tensor_storage storage = tensor_storage::in_file,
             io::file_calls& calls = io::system_calls()) const;

 private:
  struct operation {
    std::string op;
    names operands, results;
    attribute_list attributes;
    std::shared_ptr<operator_graph> body;
  };
  struct named_value {
    std::string name;
    dtype type;
    std::vector<dimension> extents;
  };
  struct named_tensor {
    std::string name;
    io::stored_tensor value;
  };

  /// The nodes that outputs need, and the names of all values that they and outputs read.
  std::vector<const operation*> needed(std::set<std::string>& read) const;
  /// The message of the model. Elements that are written to the file `location` are appended to `data`.
  protobuf_message message(const std::string& location, std::vector<std::string_view>& data) const;
  protobuf_message message(const operation& o) const;
  static protobuf_message message(const named_value& v);

  operator_graph* root_ = this;  // the graph that has the names and initializers of all bodies
  std::deque<operation> operations_;
  std::map<std::string, names> known_;  // results of operations, by a description of the operation
  std::vector<named_value> inputs_, outputs_;

  std::set<std::string> used_;
  std::map<std::string, int> numbers_;  // number of the next name, by its beginning
  std::deque<named_tensor> initializers_;
  std::map<std::string, std::string> constants_;  // names, by type, extents and elements
};

}  // namespace weft::onnx

#ifndef WEFT_COMPILED
#include <weft/onnx/impl/model.ipp>
#endif

// SPDX-License-Identifier: MIT
// Definitions of <weft/onnx/model.hpp>.
#pragma once

#include <algorithm>
#include <cstring>

#include <weft/io/files.hpp>
#include <weft/io/json_parser.hpp>
#include <weft/onnx/model.hpp>

namespace weft::onnx {

namespace detail {

/// Numbers of fields and values, from onnx.proto.
namespace field {
inline constexpr int of_attribute_name = 1, of_attribute_float = 2, of_attribute_integer = 3,
                     of_attribute_string = 4, of_attribute_graph = 6, of_attribute_integers = 8,
                     of_attribute_type = 20;
inline constexpr int of_node_input = 1, of_node_output = 2, of_node_name = 3, of_node_op = 4,
                     of_node_attribute = 5;
inline constexpr int of_tensor_dims = 1, of_tensor_type = 2, of_tensor_name = 8, of_tensor_bytes = 9,
                     of_tensor_external_data = 13, of_tensor_location = 14;
inline constexpr int of_entry_key = 1, of_entry_value = 2;
inline constexpr int of_value_name = 1, of_value_type = 2, of_type_tensor = 1, of_tensor_type_element = 1,
                     of_tensor_type_shape = 2, of_shape_dim = 1, of_dim_number = 1, of_dim_name = 2;
inline constexpr int of_graph_node = 1, of_graph_name = 2, of_graph_initializer = 5, of_graph_input = 11,
                     of_graph_output = 12;
inline constexpr int of_model_ir = 1, of_model_producer = 2, of_model_producer_version = 3,
                     of_model_graph = 7, of_model_opset = 8, of_opset_version = 2;
}  // namespace field
enum attribute_type { type_float = 1, type_integer = 2, type_string = 3, type_graph = 5, type_integers = 7 };

/// The bytes of a message as one string.
inline std::string text_of(const protobuf_message& m) {
  std::string all;
  for (const std::string_view part : m.parts()) all += part;
  return all;
}

inline constexpr std::size_t most_bytes_in_model = 1024;         // per tensor with storage in another file
inline constexpr std::uint64_t most_bytes_of_file = 0x7fffffff;  // limit of Protocol Buffers

}  // namespace detail

WEFT_DEFINE attribute::attribute(const char* name, int type) {
  message_.add_string(detail::field::of_attribute_name, name);
  message_.add_integer(detail::field::of_attribute_type, type);
}
WEFT_DEFINE attribute::attribute(const char* name, std::int64_t value)
    : attribute(name, int{detail::type_integer}) {
  message_.add_integer(detail::field::of_attribute_integer, value);
}
WEFT_DEFINE attribute::attribute(const char* name, float value) : attribute(name, int{detail::type_float}) {
  message_.add_float(detail::field::of_attribute_float, value);
}
WEFT_DEFINE attribute::attribute(const char* name, const char* value)
    : attribute(name, int{detail::type_string}) {
  message_.add_string(detail::field::of_attribute_string, value);
}
WEFT_DEFINE attribute::attribute(const char* name, const integers& value)
    : attribute(name, int{detail::type_integers}) {
  for (const std::int64_t v : value) message_.add_integer(detail::field::of_attribute_integers, v);
}

WEFT_DEFINE void operator_graph::reserve(const std::string& name, const char* what) {
  if (name.empty()) refuse<value_error>({"weft: onnx: an ", what, " has no name"});
  if (!io::detail::is_utf8(name))
    refuse<value_error>({"weft: onnx: the name of an ", what, " is not UTF-8: ", name});
  if (!root_->used_.insert(name).second)
    refuse<value_error>({"weft: onnx: ", what, " ", name, ": another value has this name"});
}

WEFT_DEFINE std::string operator_graph::new_name(const std::string& base) {
  int& number = root_->numbers_[base];
  for (;;) {
    std::string name = base + "_" + std::to_string(number++);
    if (root_->used_.insert(name).second) return name;
  }
}

WEFT_DEFINE names operator_graph::apply_all(const std::string& op, const names& operands,
                                            const attribute_list& attributes, int results) {
  std::string key = op;
  for (const std::string& o : operands) (key += '\0') += o;
  for (const attribute& a : attributes) (key += '\0') += detail::text_of(a.message());
  names& found = known_[key];
  if (found.empty()) {
    for (int i = 0; i < results; ++i) found.push_back(new_name(op));
    operations_.push_back({op, operands, found, attributes, nullptr});
  }
  return found;
}

WEFT_DEFINE names operator_graph::scan(std::shared_ptr<operator_graph> body, const names& operands,
                                       const attribute_list& attributes, int results) {
  names made;
  for (int i = 0; i < results; ++i) made.push_back(new_name("Scan"));
  operations_.push_back({"Scan", operands, made, attributes, std::move(body)});
  return made;
}

WEFT_DEFINE std::string operator_graph::constant(io::stored_tensor value) {
  std::string key = name_of(value.type) + to_string(value.extents);
  key.append(value.bytes.data(), value.bytes.size());
  std::string& name = root_->constants_[key];
  if (name.empty()) {
    name = new_name("constant");
    add_initializer(name, std::move(value));
  }
  return name;
}

WEFT_DEFINE std::string operator_graph::constant(const integers& values) {
  io::stored_tensor t{dtype::i64, {1, {static_cast<index_t>(values.size())}}, {}};
  t.bytes.resize(values.size() * sizeof(std::int64_t));
  if (!values.empty()) std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return constant(std::move(t));
}

WEFT_DEFINE void operator_graph::add_input(const std::string& name, dtype type,
                                           std::vector<dimension> extents) {
  inputs_.push_back({name, type, std::move(extents)});
}
WEFT_DEFINE void operator_graph::add_initializer(const std::string& name, io::stored_tensor value) {
  root_->initializers_.push_back({name, std::move(value)});
}
WEFT_DEFINE void operator_graph::add_output(const std::string& name, const std::string& of, dtype type,
                                            std::vector<dimension> extents) {
  operations_.push_back({"Identity", {of}, {name}, {}, nullptr});
  outputs_.push_back({name, type, std::move(extents)});
}

WEFT_DEFINE std::vector<const operator_graph::operation*> operator_graph::needed(
    std::set<std::string>& read) const {
  std::vector<const operation*> all;
  for (const named_value& o : outputs_) read.insert(o.name);
  for (auto o = operations_.rbegin(); o != operations_.rend(); ++o) {
    if (std::none_of(o->results.begin(), o->results.end(), [&](const auto& r) { return read.contains(r); }))
      continue;
    all.push_back(&*o);
    read.insert(o->operands.begin(), o->operands.end());
    if (o->body) o->body->needed(read);
  }
  std::reverse(all.begin(), all.end());
  return all;
}

WEFT_DEFINE protobuf_message operator_graph::message(const named_value& v) {
  using namespace detail::field;
  protobuf_message shape, tensor, type, value;
  for (const dimension& d : v.extents) {
    protobuf_message dim;
    if (!d.name.empty()) dim.add_string(of_dim_name, d.name);
    else if (d.number >= 0) dim.add_integer(of_dim_number, d.number);
    shape.add_message(of_shape_dim, dim);
  }
  tensor.add_integer(of_tensor_type_element, number_of_type(v.type));
  tensor.add_message(of_tensor_type_shape, shape);
  type.add_message(of_type_tensor, tensor);
  value.add_string(of_value_name, v.name);
  value.add_message(of_value_type, type);
  return value;
}

WEFT_DEFINE protobuf_message operator_graph::message(const operation& o) const {
  using namespace detail::field;
  protobuf_message node;
  for (const std::string& name : o.operands) node.add_string(of_node_input, name);
  for (const std::string& name : o.results) node.add_string(of_node_output, name);
  node.add_string(of_node_name, o.results[0]);
  node.add_string(of_node_op, o.op);
  for (const attribute& a : o.attributes) node.add_message(of_node_attribute, a.message());
  if (o.body) {
    std::vector<std::string_view> none;
    protobuf_message body;
    body.add_string(of_attribute_name, "body");
    body.add_integer(of_attribute_type, detail::type_graph);
    body.add_message(of_attribute_graph, o.body->message("", none));
    node.add_message(of_node_attribute, body);
  }
  return node;
}

WEFT_DEFINE protobuf_message operator_graph::message(const std::string& location,
                                                     std::vector<std::string_view>& data) const {
  using namespace detail::field;
  std::set<std::string> read;
  protobuf_message all;
  for (const operation* o : needed(read)) all.add_message(of_graph_node, message(*o));
  all.add_string(of_graph_name, root_ == this ? "main" : "body");
  std::uint64_t offset = 0;
  for (const named_tensor& t : initializers_) {
    if (!read.contains(t.name)) continue;
    protobuf_message tensor;
    for (int d = 0; d < t.value.extents.order; ++d) tensor.add_integer(of_tensor_dims, t.value.extents[d]);
    tensor.add_integer(of_tensor_type, number_of_type(t.value.type));
    tensor.add_string(of_tensor_name, t.name);
    const std::string_view bytes(t.value.bytes.data(), t.value.bytes.size());
    if (location.empty() || bytes.size() < detail::most_bytes_in_model) {
      tensor.add_reference(of_tensor_bytes, bytes);
    } else {
      const std::pair<const char*, std::string> entries[] = {{"location", location},
                                                             {"offset", std::to_string(offset)},
                                                             {"length", std::to_string(bytes.size())}};
      for (const auto& [key, value] : entries) {
        protobuf_message entry;
        entry.add_string(of_entry_key, key);
        entry.add_string(of_entry_value, value);
        tensor.add_message(of_tensor_external_data, entry);
      }
      tensor.add_integer(of_tensor_location, 1);
      data.push_back(bytes);
      offset += bytes.size();
    }
    all.add_message(of_graph_initializer, tensor);
  }
  for (const named_value& v : inputs_) all.add_message(of_graph_input, message(v));
  for (const named_value& v : outputs_) all.add_message(of_graph_output, message(v));
  return all;
}

WEFT_DEFINE void operator_graph::write(const std::string& path, tensor_storage storage,
                                       io::file_calls& calls) const {
  using namespace detail::field;
  const bool apart = storage == tensor_storage::in_another_file;
  const std::string other = path + ".data";
  std::vector<std::string_view> data;
  protobuf_message opset_message, model;
  opset_message.add_integer(of_opset_version, opset);
  model.add_integer(of_model_ir, ir_version);
  model.add_string(of_model_producer, "weft");
  model.add_string(of_model_producer_version, std::to_string(WEFT_VERSION_MAJOR) + "." +
                                                  std::to_string(WEFT_VERSION_MINOR) + "." +
                                                  std::to_string(WEFT_VERSION_PATCH));
  model.add_message(of_model_graph, message(apart ? other.substr(other.find_last_of('/') + 1) : "", data));
  model.add_message(of_model_opset, opset_message);
  if (model.size() > detail::most_bytes_of_file)
    refuse<value_error>({"weft: onnx: ", path, " would have ", model.size(),
                         " bytes, and readers accept less than 2 GiB: ",
                         apart ? "make it smaller" : "put the elements of initializers into another file"});
  if (data.empty()) return io::replace_file(calls, path, model.parts());
  io::replacement_file elements(calls, other), file(calls, path);
  for (const std::string_view part : data) elements.append(part);
  for (const std::string_view part : model.parts()) file.append(part);
  elements.sync(), file.sync();  // so that a full disk is noticed before a file is replaced
  if (calls.remove(path) == 0) io::sync_folder(calls, io::parent_of(path));
  else if (errno != ENOENT) io::fail_at(path, "cannot be replaced");
  elements.finish();
  file.finish();
}

}  // namespace weft::onnx

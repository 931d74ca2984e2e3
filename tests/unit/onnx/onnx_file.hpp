// SPDX-License-Identifier: MIT
// A reader of ONNX files that shares no code with the writer: fields of messages by their numbers in
// onnx.proto, and checks that a file is valid.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace onnx_file {

struct field {
  int number = 0;
  std::int64_t integer = 0;
  std::string_view bytes{};
};

inline std::uint64_t read_varint(std::string_view& from) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (from.empty() || shift == 63 + 7) throw std::runtime_error("a varint does not end");
    const auto byte = static_cast<unsigned char>(from[0]);
    from.remove_prefix(1);
    value |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) break;
  }
  return value;
}

/// The fields of a message, in order.
inline std::vector<field> fields_of(std::string_view message) {
  std::vector<field> all;
  while (!message.empty()) {
    const std::uint64_t key = read_varint(message);
    field f{static_cast<int>(key >> 3)};
    std::size_t size = 0;
    switch (key & 7) {
      case 0: f.integer = static_cast<std::int64_t>(read_varint(message)); break;
      case 2: size = read_varint(message); break;
      case 5: size = 4; break;
      default: throw std::runtime_error("a field of an unknown type");
    }
    if (size > message.size()) throw std::runtime_error("a field is longer than its message");
    f.bytes = message.substr(0, size);
    message.remove_prefix(size);
    all.push_back(f);
  }
  return all;
}

/// All fields `number` of a message; the first one; the first one's integer.
inline std::vector<field> all_of(std::string_view message, int number) {
  std::vector<field> found;
  for (const field& f : fields_of(message))
    if (f.number == number) found.push_back(f);
  return found;
}
inline field one_of(std::string_view message, int number) {
  const auto found = all_of(message, number);
  return found.empty() ? field{} : found[0];
}

struct attribute {
  std::int64_t integer = 0;
  std::vector<std::int64_t> integers{};
  std::string text{};
  float number = 0;
};
struct graph;
struct node {
  std::string op;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, attribute> attributes;
  std::vector<graph> bodies;
};
struct value {
  std::string name;
  std::int64_t type = 0;
  std::vector<std::string> dims;  // numbers and names
};
struct tensor {
  std::int64_t type = 0;
  std::vector<std::int64_t> dims;
  std::string bytes;
  std::map<std::string, std::string> external;
};
struct graph {
  std::vector<node> nodes;
  std::map<std::string, tensor> initializers;
  std::vector<value> inputs, outputs;

  int count(const std::string& op) const {
    int n = 0;
    for (const node& each : nodes) n += each.op == op;
    return n;
  }
  const node& first(const std::string& op) const {
    for (const node& each : nodes)
      if (each.op == op) return each;
    throw std::runtime_error("there is no " + op);
  }
};

inline value read_value(std::string_view m) {
  value v{std::string(one_of(m, 1).bytes), 0, {}};
  const auto type = one_of(one_of(m, 2).bytes, 1).bytes;
  v.type = one_of(type, 1).integer;
  for (const field& dim : all_of(one_of(type, 2).bytes, 1)) {
    const auto number = all_of(dim.bytes, 1), name = all_of(dim.bytes, 2);
    v.dims.push_back(!number.empty() ? std::to_string(number[0].integer)
                     : name.empty()  ? "?"
                                     : std::string(name[0].bytes));
  }
  return v;
}

inline tensor read_tensor(std::string_view m) {
  tensor t{one_of(m, 2).integer, {}, std::string(one_of(m, 9).bytes), {}};
  for (const field& d : all_of(m, 1)) t.dims.push_back(d.integer);
  for (const field& e : all_of(m, 13))
    t.external[std::string(one_of(e.bytes, 1).bytes)] = std::string(one_of(e.bytes, 2).bytes);
  return t;
}

inline graph read_graph(std::string_view m);
inline node read_node(std::string_view m) {
  node n{std::string(one_of(m, 4).bytes), {}, {}, {}, {}};
  for (const field& f : all_of(m, 1)) n.inputs.emplace_back(f.bytes);
  for (const field& f : all_of(m, 2)) n.outputs.emplace_back(f.bytes);
  for (const field& f : all_of(m, 5)) {
    attribute a{one_of(f.bytes, 3).integer, {}, std::string(one_of(f.bytes, 4).bytes)};
    for (const field& i : all_of(f.bytes, 8)) a.integers.push_back(i.integer);
    if (const auto number = one_of(f.bytes, 2).bytes; number.size() == 4)
      std::memcpy(&a.number, number.data(), 4);
    n.attributes[std::string(one_of(f.bytes, 1).bytes)] = a;
    if (const auto body = all_of(f.bytes, 6); !body.empty()) n.bodies.push_back(read_graph(body[0].bytes));
  }
  return n;
}

inline graph read_graph(std::string_view m) {
  graph g;
  for (const field& f : fields_of(m)) {
    if (f.number == 1) g.nodes.push_back(read_node(f.bytes));
    if (f.number == 11) g.inputs.push_back(read_value(f.bytes));
    if (f.number == 12) g.outputs.push_back(read_value(f.bytes));
    if (f.number == 5)
      if (!g.initializers.emplace(std::string(one_of(f.bytes, 8).bytes), read_tensor(f.bytes)).second)
        throw std::runtime_error("two initializers have one name");
  }
  return g;
}

/// Throws unless each value has a unique name and is defined before it is read, initializers have as many
/// bytes as their shapes require, and ops have the attributes that they need. `known`: names from outside.
inline void check(const graph& g, std::set<std::string> known = {}) {
  const std::map<std::int64_t, std::size_t> size{{1, 4}, {2, 1},  {6, 4},  {7, 8},
                                                 {9, 1}, {10, 2}, {11, 8}, {16, 2}};
  const auto define = [&](const std::string& name) {
    if (name.empty() || !known.insert(name).second) throw std::runtime_error(name + " is defined twice");
  };
  for (const value& v : g.inputs) define(v.name);
  for (const auto& [name, t] : g.initializers) {
    define(name);
    std::size_t bytes = size.at(t.type);
    for (const std::int64_t d : t.dims) bytes *= static_cast<std::size_t>(d);
    if (t.external.empty() ? t.bytes.size() != bytes : t.external.at("length") != std::to_string(bytes))
      throw std::runtime_error(name + " has other bytes than its shape");
  }
  std::set<std::string> read;
  for (const node& n : g.nodes) {
    for (const std::string& name : n.inputs)
      if (!known.contains(name)) throw std::runtime_error(n.op + " reads " + name + " before it is defined");
    for (const graph& body : n.bodies) check(body, known);
    for (const std::string& name : n.outputs) define(name);
  }
  for (const value& v : g.outputs)
    if (!known.contains(v.name)) throw std::runtime_error("output " + v.name + " is not defined");
}

/// The graph of a model's bytes, after these checks.
inline graph read(std::string_view model) {
  if (one_of(model, 1).integer != 8) throw std::runtime_error("another version of the format");
  const auto opset = all_of(model, 8);
  if (opset.size() != 1 || one_of(opset[0].bytes, 2).integer != 18) throw std::runtime_error("another opset");
  const graph g = read_graph(one_of(model, 7).bytes);
  check(g);
  return g;
}

}  // namespace onnx_file

// SPDX-License-Identifier: MIT
// Matrix products of many shapes, the same for all programs: C [m, n] = A [m, k] B [k, n], each operand
// stored as written or transposed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops.hpp"

namespace products {

struct form {
  const char* name;
  bool a_transposed, b_transposed;
};
inline constexpr form forms[] = {{"AB", false, false}, {"ABt", false, true}, {"AtB", true, false}};

struct shape {
  long m, n, k;
};
inline constexpr shape shapes[] = {
    {1, 768, 768},      {8, 768, 768},      {32, 768, 768},     {64, 768, 768},
    {64, 64, 64},       {50, 70, 33},       {100, 100, 100},    {512, 512, 512},
    {1000, 1000, 1000}, {1024, 1024, 1024}, {2048, 2048, 2048}, {256, 2304, 768},
    {256, 3072, 768},   {256, 768, 3072},   {4096, 768, 768},   {1024, 50304, 768}};

/// Adds a task for every product: make(shape, form) returns a function that computes it. Operands are created
/// when a task first runs, and those of the previous task are freed, so that one product is in memory at a
/// time.
template <class Make>
void add_tasks(std::vector<ops::task>& tasks, const std::string& type, const Make& make) {
  static std::string made;
  static std::function<void()> product;
  for (const shape& s : shapes)
    for (const form& f : forms) {
      const std::string name = type + " " + std::to_string(s.m) + "," + std::to_string(s.n) + "," +
                               std::to_string(s.k) + " " + f.name;
      tasks.push_back({name, [=] {
                         if (made != name) {
                           product = {};
                           product = make(s, f);
                           made = name;
                         }
                         product();
                       }});
    }
}

}  // namespace products

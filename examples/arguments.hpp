// SPDX-License-Identifier: MIT
// Command-line flags of the examples: --name value. Values are checked; a mistake is reported in one line.
#pragma once

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <weft/base/error.hpp>

class arguments {
 public:
  void text(const std::string& name, std::string& to) {
    add(name, [&to](const std::string&, const std::string& v) { to = v; });
  }
  /// One of `words`.
  void choice(const std::string& name, std::string& to, std::vector<std::string> words) {
    add(name, [&to, words](const std::string& n, const std::string& v) {
      std::string known;
      for (const std::string& w : words) {
        if (w == v) {
          to = v;
          return;
        }
        known += (known.empty() ? "" : ", ") + w;
      }
      throw weft::usage_error("--" + n + " " + v + ": expected one of " + known);
    });
  }
  /// A number of at least `least`.
  template <class Number>
  void number(const std::string& name, Number& to, Number least) {
    add(name, [&to, least](const std::string& n, const std::string& v) { to = number_in(n, v, v, least); });
  }
  /// Numbers of at least `least`, separated by commas.
  template <class Number>
  void numbers(const std::string& name, std::vector<Number>& to, Number least) {
    add(name, [&to, least](const std::string& n, const std::string& v) {
      to.clear();
      for (std::size_t at = 0; at <= v.size();) {
        const std::size_t end = std::min(v.find(',', at), v.size());
        to.push_back(number_in(n, v, v.substr(at, end - at), least));
        at = end + 1;
      }
    });
  }
  /// A number of bytes; the suffix K, M or G multiplies it by 1e3, 1e6 or 1e9.
  void bytes(const std::string& name, double& to) {
    add(name, [&to](const std::string& n, const std::string& v) {
      const std::size_t unit = std::string("KMG").find(v.empty() ? '?' : v.back());
      const char* const end = v.data() + v.size() - (unit == std::string::npos ? 0 : 1);
      double parsed = 0;
      const auto r = std::from_chars(v.data(), end, parsed);
      if (r.ec != std::errc() || r.ptr != end || !(parsed > 0 && parsed < 1e18))
        throw weft::usage_error("--" + n + " " + v + ": expected a number of bytes, 800M for example");
      constexpr double units[] = {1e3, 1e6, 1e9};
      to = unit == std::string::npos ? parsed : parsed * units[unit];
    });
  }
  void list(const std::string& name, std::vector<std::string>& to) { lists_[name] = &to; }
  void flag(const std::string& name, bool& to) { flags_[name] = &to; }

  void parse(int count, char** values) {
    for (int i = 1; i < count; ++i) {
      std::string name = values[i];
      if (name.rfind("--", 0) != 0) throw weft::usage_error(name + ": expected a flag that starts with --");
      name.erase(0, 2);
      if (const auto f = flags_.find(name); f != flags_.end()) {
        *f->second = true;
      } else if (const auto l = lists_.find(name); l != lists_.end()) {
        while (i + 1 < count && std::string(values[i + 1]).rfind("--", 0) != 0)
          l->second->push_back(values[++i]);
      } else if (const auto h = handlers_.find(name); h != handlers_.end()) {
        if (i + 1 == count) throw weft::usage_error("--" + name + ": expected a value");
        h->second(name, values[++i]);
      } else {
        throw weft::usage_error("--" + name + ": unknown flag");
      }
    }
  }

 private:
  using handler = std::function<void(const std::string&, const std::string&)>;
  /// Parses `part`, a part of the value `v` of the flag `n`, as a number.
  template <class Number>
  static Number number_in(const std::string& n, const std::string& v, const std::string& part, Number least) {
    Number parsed{};
    const auto r = std::from_chars(part.data(), part.data() + part.size(), parsed);
    if (r.ec != std::errc() || r.ptr != part.data() + part.size() || !(parsed >= least))
      throw weft::usage_error("--" + n + " " + v + ": expected a number" +
                              (least > Number{}    ? " above 0"
                               : least == Number{} ? " that is not negative"
                                                   : ""));
    return parsed;
  }
  void add(const std::string& name, handler h) { handlers_[name] = std::move(h); }

  std::map<std::string, handler> handlers_;
  std::map<std::string, std::vector<std::string>*> lists_;
  std::map<std::string, bool*> flags_;
};

// SPDX-License-Identifier: MIT
// A C locale whose decimal point is a comma.
#pragma once

#include <clocale>
#include <string>

namespace weft::test {

/// Sets such a locale during its lifetime, if this machine has one.
class comma_locale {
 public:
  comma_locale() {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"})
      if (std::setlocale(LC_ALL, name) && *std::localeconv()->decimal_point == ',') return;
    std::setlocale(LC_ALL, before_.c_str());
  }
  comma_locale(const comma_locale&) = delete;
  comma_locale& operator=(const comma_locale&) = delete;
  ~comma_locale() { std::setlocale(LC_ALL, before_.c_str()); }

  bool is_set() const { return *std::localeconv()->decimal_point == ','; }

 private:
  std::string before_ = std::setlocale(LC_ALL, nullptr);
};

}  // namespace weft::test

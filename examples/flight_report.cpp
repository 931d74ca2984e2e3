// SPDX-License-Identifier: MIT
// Reads the recordings that ranks have left in a folder: flight_report FOLDER.
#include <cstdio>

#include <weft/comm/flight_report.hpp>

int main(int count, char** values) {
  if (count != 2)
    return std::fputs(
               "flight_report FOLDER: prints what each rank did last, and which rank the others wait for\n",
               stderr),
           2;
  std::fputs(weft::flight_report(values[1]).c_str(), stdout);
}

// SPDX-License-Identifier: MIT
// Fuzz target for recordings of ranks: any bytes yield a report that a terminal can show. The input begins
// with the bytes of the ranks of up to three files, followed by the files' records.
#include <algorithm>
#include <cstdint>

#include <weft/comm/flight_report.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::detail;
  weft::detail::flight_summary summary;
  const std::size_t files = size < 4 ? 0 : data[3] % 8 ? 1 + data[3] % 2 : 3;
  std::size_t at = 4;
  for (std::size_t f = 0; f < files; ++f) {
    std::string bytes(sizeof(flight_file), '\0');
    std::memcpy(bytes.data(), flight_magic, sizeof flight_magic);
    const std::int32_t rank = static_cast<std::int8_t>(data[f]);
    std::memcpy(bytes.data() + offsetof(flight_file, rank), &rank, sizeof rank);
    const std::size_t n = std::min(size - at, std::size_t{8} * sizeof(flight_record));
    std::memcpy(bytes.data() + offsetof(flight_file, at), data + at, n);
    at += n;
    if (!summary.add(bytes)) __builtin_trap();
  }
  if (size > 0 && summary.add(std::string(reinterpret_cast<const char*>(data), size)))
    __builtin_trap();  // of another size
  for (const char c : summary.report())
    if ((c < ' ' || c > '~') && c != '\n') __builtin_trap();
  return 0;
}

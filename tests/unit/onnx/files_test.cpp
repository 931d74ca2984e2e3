// SPDX-License-Identifier: MIT
// Interrupted writes of an ONNX model in two files, the model and its elements.
#include <doctest/doctest.h>

#include <functional>

#include <weft/io/files.hpp>
#include <weft/onnx/model.hpp>

#include "../../numbers.hpp"

using namespace weft;

namespace {

/// Reports before each call that changes a file, and fails at one of them.
struct watched_disk : io::file_calls {
  std::function<void()> before = [] {};
  int done = 0, fails_at = 0;

  bool goes_on() {
    before();
    errno = EIO;
    return ++done != fails_at;
  }
  int create(const std::string& path) override { return goes_on() ? file_calls::create(path) : -1; }
  ssize_t write(int file, const char* from, std::size_t bytes) override {
    return goes_on() ? file_calls::write(file, from, bytes) : -1;
  }
  int sync(int file) override { return goes_on() ? file_calls::sync(file) : -1; }
  int rename(const std::string& from, const std::string& to) override {
    return goes_on() ? file_calls::rename(from, to) : -1;
  }
  int remove(const std::string& path) override { return goes_on() ? file_calls::remove(path) : -1; }
  int sync_folder(const std::string& path) override { return goes_on() ? file_calls::sync_folder(path) : -1; }
};

/// Writes a model of n numbers.
void write(index_t n, const std::string& path, io::file_calls& calls = io::system_calls()) {
  onnx::operator_graph g;
  g.reserve("w", "tensor");
  g.reserve("y", "output");
  g.add_initializer("w", numbers(dtype::f32, {1, {n}}));
  g.add_output("y", "w", dtype::f32, {n});
  g.write(path, onnx::tensor_storage::in_another_file, calls);
}

}  // namespace

TEST_CASE("a model is never beside the elements of another, whenever writing ends") {
  const temporary_file model("weft_model.onnx"), data("weft_model.onnx.data");
  const auto has_model = [&] { return std::filesystem::exists(std::string(model)); };
  write(400, model);
  const std::string old_model = model.bytes(), old_data = data.bytes();
  write(500, model);
  const std::string new_model = model.bytes(), new_data = data.bytes();
  REQUIRE(old_data.size() == 1600);
  REQUIRE(new_data.size() == 2000);
  watched_disk disk;
  disk.before = [&] {
    if (has_model()) CHECK(data.bytes() == (model.bytes() == old_model ? old_data : new_data));
  };
  bool done = false;
  for (disk.fails_at = 1; !done; ++disk.fails_at) {
    CAPTURE(disk.fails_at);
    write(400, model);
    disk.done = 0;
    try {
      write(500, model, disk);
      done = true;
    } catch (const io_error&) {}
    disk.before();
    if (disk.done < 9) CHECK(model.bytes() == old_model);
    CHECK(!std::filesystem::exists(model + ".partial"));
    CHECK(!std::filesystem::exists(data + ".partial"));
  }
  CHECK(disk.fails_at > 15);
  CHECK(model.bytes() == new_model);
}

// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include <weft/train/idx.hpp>
#include <weft/train/text.hpp>

using namespace weft;

namespace {

/// Sample i is (i, 10 i).
struct numbers {
  using fields = std::tuple<tensor<float, weft::extents<dyn, 2>>, tensor<std::int32_t, weft::extents<dyn>>>;
  index_t count = 10;
  index_t fails_at = -1;
  index_t size() const { return count; }
  std::array<shape, 2> extents() const { return {shape{1, {2}}, shape{}}; }
  void read(index_t i, float* x, std::int32_t* y) const {
    if (i == fails_at) throw io_error("sample " + std::to_string(i));
    x[0] = static_cast<float>(i);
    x[1] = static_cast<float>(i) / 2;
    *y = static_cast<std::int32_t>(10 * i);
  }
};

/// The same, with the extents of a sample in its types.
struct grids {
  using fields = std::tuple<tensor<std::int32_t, extents<dyn>>, tensor<float, extents<dyn, 3, 2>>>;
  index_t size() const { return 7; }
  void read(index_t i, std::int32_t* number, float* grid) const {
    *number = static_cast<std::int32_t>(i);
    for (int e = 0; e < 6; ++e) grid[e] = static_cast<float>(10 * i + e);
  }
};
struct of_any_size {
  using fields = std::tuple<tensor<float, extents<dyn, dyn>>>;
  index_t size() const { return 7; }
  void read(index_t, float*) const {}
};
static_assert(dataset<numbers> && dataset<grids> && !dataset<of_any_size>);

std::string file_with(const char* name, const std::vector<std::uint8_t>& bytes) {
  const auto path = std::filesystem::temp_directory_path() / name;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path.string();
}

}  // namespace

TEST_CASE("a data set without extents() has those of its types") {
  loader batches(grids{}, {.batch = 4});
  index_t next = 0;
  for (auto [number, grid] : batches) {
    CHECK(grid.extents() == shape{3, {number.extent(0), 3, 2}});
    const std::vector<float> all = grid.to_vector();
    for (index_t i = 0; i < number.extent(0); ++i, ++next) {
      CHECK(number(i) == next);
      for (index_t e = 0; e < 6; ++e)
        CHECK(all[static_cast<std::size_t>(6 * i + e)] == static_cast<float>(10 * next + e));
    }
  }
  CHECK(next == 7);
}

TEST_CASE("a pass takes every sample once, the last batch may be smaller") {
  for (int prefetch : {0, 3}) {
    loader batches(numbers{}, {.batch = 4, .shuffle = true, .seed = 5, .prefetch = prefetch});
    for (int pass = 0; pass < 2; ++pass) {
      std::multiset<int> seen;
      std::vector<index_t> sizes;
      for (auto [x, y] : batches) {
        sizes.push_back(y.extent(0));
        const auto values = x.to_vector();
        const auto labels = y.to_vector();
        for (std::size_t i = 0; i < labels.size(); ++i) {
          CHECK(values[2 * i] * 10 == labels[i]);
          seen.insert(labels[i] / 10);
        }
      }
      CHECK(sizes == std::vector<index_t>{4, 4, 2});
      CHECK(seen == std::multiset<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    }
  }
}

TEST_CASE("drop_last leaves out a smaller batch, next runs over the end of a pass") {
  loader batches(numbers{}, {.batch = 4, .drop_last = true});
  for (int pass = 0; pass < 2; ++pass) {
    int count = 0;
    for (auto [x, y] : batches) count += static_cast<int>(y.extent(0));
    CHECK(count == 8);
  }
  const loader_options options[] = {
      {.batch = 4, .drop_last = true}, {.batch = 5}, {.batch = 2, .share = {.rank = 0, .ranks = 2}}};
  for (const loader_options& o : options)  // left at the last whole batch
    for (bool sought : {false, true}) {
      loader left(numbers{}, o);
      int seen = 0;
      if (sought) left.seek(o.batch == 5 ? 10 : 8);
      else
        for (auto [x, y] : left)
          if (++seen == 2) break;
      for (int pass = 0; pass < 2; ++pass) {
        seen = 0;
        for (auto [x, y] : left) {
          if (seen == 0) CHECK(y(0) == 0);
          ++seen;
        }
        CHECK(seen == 2);
      }
    }
  loader stream(numbers{}, {.batch = 4});
  stream.next();
  stream.next();
  CHECK(std::get<1>(stream.next()).to_vector() == std::vector<std::int32_t>{80, 90, 0, 10});
}

TEST_CASE("ranks share the batches of a step") {
  for (bool interleaved : {false, true}) {
    std::vector<std::vector<std::int32_t>> of_rank;
    for (int rank : {0, 1}) {
      loader batches(numbers{.count = 20}, {.batch = 2, .share = {rank, 2, 2, interleaved}});
      std::vector<std::int32_t> firsts;
      for (int pass = 0; pass < 2; ++pass)
        for (auto [x, y] : batches) firsts.push_back(y.to_vector()[0] / 10);
      CHECK(firsts.size() == 8);  // a pass has two whole steps of 8 samples
      of_rank.push_back(std::vector<std::int32_t>(firsts.begin(), firsts.begin() + 4));
      CHECK(batches.position() == 40);
      batches.seek(8);
      CHECK(std::get<1>(batches.next()).to_vector()[0] / 10 == firsts[2]);
    }
    if (interleaved) CHECK(of_rank == std::vector<std::vector<std::int32_t>>{{0, 4, 8, 12}, {2, 6, 10, 14}});
    else CHECK(of_rank == std::vector<std::vector<std::int32_t>>{{0, 2, 8, 10}, {4, 6, 12, 14}});
  }
  CHECK_THROWS_AS(loader(numbers{}, {.share = {.rank = 2, .ranks = 2}}), usage_error);
}

TEST_CASE("a position resumes the order, shuffled too, whatever was read ahead") {
  const auto labels_from = [](auto& batches) { return std::get<1>(batches.next()).to_vector(); };
  loader one(numbers{}, {.batch = 3, .shuffle = true, .seed = 9});
  std::vector<std::vector<std::int32_t>> all;
  for (int i = 0; i < 8; ++i) all.push_back(labels_from(one));
  loader two(numbers{}, {.batch = 3, .shuffle = true, .seed = 9, .prefetch = 0});
  two.seek(12);
  CHECK(labels_from(two) == all[4]);
  one.seek(6);
  CHECK(labels_from(one) == all[2]);
  CHECK(one.position() == 9);
  CHECK(all[0] != all[4]);
}

TEST_CASE("what a dataset throws on another thread arrives; bad options are refused") {
  loader batches(numbers{.fails_at = 5}, {.batch = 4});
  batches.next();
  CHECK_THROWS_WITH_AS(batches.next(), "sample 5", io_error);
  CHECK_THROWS_AS(loader(numbers{}, {.batch = 0}), usage_error);
  CHECK_THROWS_AS(loader(numbers{.count = 0}, {}), usage_error);
  CHECK_THROWS_WITH_AS(loader(numbers{}, {.batch = 11, .drop_last = true}),
                       "weft: loader: the dataset has 10 samples, fewer than a batch of 11, and drop_last "
                       "omits smaller batches: .batch = 10, or .drop_last = false",
                       usage_error);
}

TEST_CASE("positions and sizes that nothing could count are refused") {
  loader batches(numbers{}, {.batch = 4, .shuffle = true});
  for (index_t position : {index_t{-1}, std::numeric_limits<index_t>::min(), (index_t{1} << 53) + 1,
                           std::numeric_limits<index_t>::max()})
    CHECK_THROWS_AS(batches.seek(position), value_error);
  batches.seek(index_t{1} << 53);
  CHECK(std::get<1>(batches.next()).extent(0) == 4);
  const index_t huge = index_t{1} << 40;
  CHECK_THROWS_AS(loader(numbers{}, {.batch = huge, .share = {.rank = 0, .ranks = 4, .micro_batches = huge}}),
                  usage_error);
  CHECK_THROWS_AS(
      loader(numbers{}, {.batch = huge, .share = {.rank = 0, .ranks = 1, .micro_batches = index_t{1} << 14}}),
      usage_error);
}

TEST_CASE("text and IDX are read from files, other things are named") {
  const auto path = std::filesystem::temp_directory_path() / "weft-kind";
  for (const bool fifo : {false, true}) {
    std::filesystem::remove(path);
    if (fifo) ::mkfifo(path.c_str(), 0600);
    else std::filesystem::create_symlink("/dev/zero", path);
    CHECK_THROWS_AS(read_idx(path.string()), io_error);
    CHECK_THROWS_AS(read_text({path.string()}), io_error);
  }
  std::filesystem::remove(path);
}

TEST_CASE("text: labels are the inputs one later") {
  loader batches(text_samples({'a', 'b', 'c', 'd', 'e', 'f', 'g'}, 3), {.batch = 2});
  auto [inputs, labels] = batches.next();
  CHECK(inputs.to_vector() == std::vector<std::uint8_t>{'a', 'b', 'c', 'd', 'e', 'f'});
  CHECK(labels.to_vector() == std::vector<std::uint8_t>{'b', 'c', 'd', 'e', 'f', 'g'});
  CHECK_THROWS_AS(text_samples({'a', 'b', 'c'}, 3), usage_error);
  CHECK_THROWS_AS(text_samples({'a', 'b', 'c'}, 0), usage_error);
  CHECK_THROWS_AS(loader(numbers{}, {.prefetch = -1}), usage_error);
}

TEST_CASE("IDX images and labels, and every way a file can be wrong") {
  const std::vector<std::uint8_t> images{0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102};
  const std::vector<std::uint8_t> labels{0, 0, 8, 1, 0, 0, 0, 2, 7, 3};
  const idx_images<2> data(file_with("weft-images", images), file_with("weft-labels", labels));
  loader batches(data, {.batch = 2});
  auto [x, y] = batches.next();
  CHECK(x.to_vector() == std::vector<float>{0, 1, 0.2f, 0.4f});
  CHECK(y.to_vector() == std::vector<std::uint8_t>{7, 3});
  CHECK_THROWS_AS(idx_images<3>(file_with("weft-images", images), file_with("weft-labels", labels)),
                  io_error);
  CHECK_THROWS_AS(
      idx_images<>(file_with("weft-images", images), file_with("weft-labels", {0, 0, 8, 1, 0, 0, 0, 1, 7})),
      io_error);
  CHECK_THROWS_AS(read_idx("/nonexistent"), io_error);
  for (std::size_t n = 0; n < images.size(); ++n)
    CHECK_THROWS_AS(
        read_idx(file_with("weft-idx", {images.begin(), images.begin() + static_cast<std::ptrdiff_t>(n)})),
        io_error);
  for (const std::vector<std::uint8_t>& wrong :
       {std::vector<std::uint8_t>{0x1f, 0x8b, 8, 0},
        {1, 0, 8, 1, 0, 0, 0, 0},
        {0, 0, 13, 1, 0, 0, 0, 0},
        {0, 0, 8, 9},
        {0, 0, 8, 4, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}})
    CHECK_THROWS_AS(read_idx(file_with("weft-idx", wrong)), io_error);
}

TEST_CASE("an IDX file without samples, whose samples could not be counted, is refused") {
  std::vector<std::uint8_t> bytes{0, 0, 8, 4, 0, 0, 0, 0};
  bytes.insert(bytes.end(), 12, 255);
  CHECK_THROWS_WITH_AS(read_idx(file_with("weft-idx", bytes)),
                       doctest::Contains("whose number of elements does not fit into 63 bits"), io_error);
  std::fill(bytes.begin() + 12, bytes.end(), std::uint8_t{0});
  CHECK(read_idx(file_with("weft-idx", bytes)).bytes.empty());
}

TEST_CASE("a dataset whose samples do not fit its fields is refused") {
  struct images {
    using fields = std::tuple<tensor<float, weft::extents<dyn, dyn, 3>>>;
    shape sample;
    index_t size() const { return 3; }
    std::array<shape, 1> extents() const { return {sample}; }
    void read(index_t, float* to) const { *to = 1; }
  };
  const auto make = [](shape s) { loader<images> batches(images{s}, {.batch = 2}); };
  make({2, {5, 3}});
  CHECK_THROWS_WITH_AS(
      make({2, {-2, 3}}),
      "weft: loader: field 0 of shape [?, ?, 3], whose first dim is that of the batch, cannot "
      "have samples of shape [?, 3]",
      shape_error);
  CHECK_THROWS_AS(make({2, {5, 4}}), shape_error);
  CHECK_THROWS_AS(make({1, {3}}), shape_error);
  CHECK_THROWS_AS(make({6, {5, 1, 1, 1, 1, 3}}), shape_error);
  CHECK_THROWS_WITH_AS(make({2, {index_t{1} << 59, 3}}), doctest::Contains("do not fit into 64 bits"),
                       shape_error);
}

TEST_CASE("a batch may be read twice, or left out") {
  loader batches(numbers{.count = 6}, {.batch = 2});
  int counted = 0;
  for (auto it = batches.begin(); it != batches.end(); ++it) ++counted;
  CHECK(counted == 3);
  std::vector<std::int32_t> seen;
  for (auto it = batches.begin(); it != batches.end(); ++it) {
    CHECK(std::get<1>(*it).to_vector() == std::get<1>(*it).to_vector());
    seen.push_back(std::get<1>(*it).to_vector()[0]);
  }
  CHECK(seen.size() == 3);
}

TEST_CASE("a pass that has no whole step of all ranks is refused, where it would be empty") {
  loader batches(numbers{.count = 3}, {.batch = 2, .share = {.rank = 0, .ranks = 2}});
  CHECK_THROWS_WITH_AS(batches.begin(),
                       "weft: loader: the dataset has 3 samples, but a step of 2 batches of 2 takes 4: an "
                       "epoch has no whole step",
                       usage_error);
  CHECK(std::get<1>(batches.next()).to_vector() == std::vector<std::int32_t>{0, 10});  // batches never end
  loader whole(numbers{.count = 4}, {.batch = 2, .share = {.rank = 0, .ranks = 2}});
  int seen = 0;
  for (auto [x, y] : whole) seen += static_cast<int>(y.extent(0));
  CHECK(seen == 2);
}

TEST_CASE("text: all files of a folder, or an error that names what cannot be read") {
  namespace fs = std::filesystem;
  const fs::path at = fs::temp_directory_path() / ("weft-text-" + std::to_string(::getpid()));
  fs::remove_all(at);
  fs::create_directories(at / "a" / "deep");
  std::ofstream(at / "a" / "deep" / "x") << "hello";
  std::ofstream(at / "b") << "world";
  fs::create_symlink(at / "b", at / "c");
  const auto text = [&] {
    const auto bytes = read_text({at.string()});
    return std::string(bytes.begin(), bytes.end());
  };
  CHECK(text() == "helloworldworld");
  fs::create_directories(at / "d" / "empty");
  CHECK_THROWS_WITH_AS(read_text({(at / "d").string()}),
                       doctest::Contains((at / "d").string().append(": no text").c_str()), usage_error);
  CHECK_THROWS_WITH_AS(read_text({}), doctest::Contains("read_text: no path is given"), usage_error);
  CHECK_THROWS_WITH_AS(read_text({""}), doctest::Contains("the path of a file to be read is empty"),
                       io_error);
  const auto refused = [&](const fs::path& entry, const std::string& words) {
    CHECK_THROWS_WITH_AS(text(), doctest::Contains((entry.string() + words).c_str()), io_error);
    fs::remove_all(entry);
    CHECK(text() == "helloworldworld");
  };
  fs::create_symlink("nowhere", at / "a" / "dangling");
  refused(at / "a" / "dangling", ": cannot be opened");
  ::mkfifo((at / "fifo").c_str(), 0600);
  refused(at / "fifo", ": is a FIFO, not a file");
  fs::create_directory_symlink(at / "a", at / "linked");
  refused(at / "linked", ": is a link to a folder");
  fs::create_directory_symlink(at, at / "a" / "loop");
  refused(at / "a" / "loop", ": is a link to a folder");
  fs::create_directory_symlink(at, at.string() + "-link");
  CHECK(read_text({at.string() + "-link"}).size() == 15);
  fs::remove(at.string() + "-link");

  fs::create_directories(at / "locked");
  fs::permissions(at / "locked", fs::perms::none);
  std::fflush(nullptr);
  const pid_t child = ::fork();  // root reads everything
  if (child == 0) {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(0);
    for (const auto& paths : {std::vector{at.string()}, std::vector{(at / "locked").string()}}) try {
        read_text(paths);
        ::_exit(1);
      } catch (const io_error& e) {
        if (std::string(e.what()).find((at / "locked").string() + ": ") == std::string::npos) ::_exit(2);
      } catch (...) { ::_exit(3); }
    ::_exit(0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  fs::permissions(at / "locked", fs::perms::owner_all);
  fs::remove_all(at);
}

TEST_CASE("sampler: no samples and negative positions are refused") {
  CHECK_THROWS_WITH_AS(sampler(0, false, 0), "weft: sampler: there are 0 samples, not 1 or more",
                       value_error);
  for (bool shuffle : {false, true}) CHECK_THROWS_AS(sampler(10, shuffle, 0).at(-1), value_error);
}

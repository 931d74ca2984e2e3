// SPDX-License-Identifier: MIT
// The folder of compiled kernels: a kernel that is found is the one that was kept, whatever happened to the
// files, and a kernel that is not safe to run is not used.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <weft/gpu/kernel_cache.hpp>

using namespace weft;
using gpu::kernel_cache;
using gpu::kernel_key;
namespace fs = std::filesystem;

namespace {

/// A folder for a test, deleted at its end, which contains the folder of a cache.
struct scratch {
  scratch() {
    std::string name = (fs::temp_directory_path() / "weft_kernels.XXXXXX").string();
    REQUIRE(mkdtemp(name.data()));
    at = name;
  }
  ~scratch() {
    std::error_code ignored;
    fs::remove_all(at, ignored);
  }
  fs::path at;
  fs::path kernels() const { return at / "some/kernels"; }
  kernel_cache cache(std::uint64_t most = 1 << 20) const { return kernel_cache(kernels().string(), most); }
  fs::path file_of(const digest& key) const {
    std::string name;
    for (const std::uint8_t byte : key) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", byte);
      name += digits;
    }
    return kernels() / name;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(kernels()), fs::directory_iterator()));
  }
};

using bytes = std::vector<char>;

bytes code_of(int number, std::size_t size = 40) {
  bytes code(size);
  for (std::size_t i = 0; i < size; ++i)
    code[i] = static_cast<char>(31 * static_cast<std::size_t>(number) + 7 * i);
  return code;
}
digest key_of(int number) { return kernel_key({"a device", std::to_string(number)}); }

bytes content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return bytes(std::istreambuf_iterator<char>(in), {});
}
void write(const fs::path& path, const bytes& what) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(what.data(), static_cast<std::streamsize>(what.size()));
}

/// The exit code of a process that exits with the result of f; -1 if a signal ended it.
template <class F>
int in_process(F f) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = f();
    } catch (...) {
    }
    _exit(code);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Sets or unsets an environment variable during its lifetime.
struct setting {
  setting(const char* variable, const char* value) : name(variable) {
    if (const char* before = std::getenv(variable)) old = before;
    set(value);
  }
  ~setting() { set(old ? old->c_str() : nullptr); }
  void set(const char* value) const {
    if (value) setenv(name, value, 1);
    else unsetenv(name);
  }
  const char* name;
  std::optional<std::string> old;
};

}  // namespace

TEST_CASE("what was kept is found again, by other objects too, in a folder for this user alone") {
  const scratch in;
  kernel_cache first = in.cache();
  CHECK(!first.find(key_of(1)));
  first.keep(key_of(1), code_of(1));
  first.keep(key_of(2), code_of(2, 0));
  first.keep(key_of(3), code_of(3, 5000));
  kernel_cache second = in.cache();
  for (kernel_cache* c : {&first, &second}) {
    CHECK(c->find(key_of(1)) == code_of(1));
    CHECK(c->find(key_of(2)) == code_of(2, 0));
    CHECK(c->find(key_of(3)) == code_of(3, 5000));
    CHECK(!c->find(key_of(4)));
    CHECK(c->refusal() == "");
  }
  second.keep(key_of(1), code_of(7));
  CHECK(first.find(key_of(1)) == code_of(7));
  CHECK(in.files() == 3);
  for (const fs::path& folder : {in.kernels(), in.kernels().parent_path()})
    CHECK(fs::status(folder).permissions() == fs::perms::owner_all);
  CHECK(fs::status(in.file_of(key_of(1))).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("keys differ where any part differs, or where it ends") {
  CHECK(kernel_key({"a", "b"}) == kernel_key({"a", "b"}));
  for (const std::vector<std::string_view>& other :
       {std::vector<std::string_view>{"ab", ""}, {"", "ab"}, {"ab"}, {"b", "a"}, {"a", "b", ""}, {"a", "c"}})
    CHECK(kernel_key({"a", "b"}) != kernel_key(other));
  CHECK(kernel_key({"a\n1 b"}) != kernel_key({"a", "b"}));
}

TEST_CASE("every byte that changes, every length that is missing or too much, counts as a missing file") {
  const scratch in;
  in.cache().keep(key_of(1), code_of(1));
  const fs::path file = in.file_of(key_of(1));
  const bytes right = content(file);
  REQUIRE(right.size() == 64 + 40);
  kernel_cache cache = in.cache();
  for (std::size_t i = 0; i < right.size(); ++i)
    for (const int bit : {0, 7}) {
      bytes wrong = right;
      wrong[i] = static_cast<char>(wrong[i] ^ 1 << bit);
      write(file, wrong);
      CAPTURE(i);
      CHECK(!cache.find(key_of(1)));
    }
  for (std::size_t size = 0; size < right.size(); ++size) {
    write(file, bytes(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(size)));
    CAPTURE(size);
    CHECK(!cache.find(key_of(1)));
  }
  bytes longer = right;
  longer.push_back(0);
  write(file, longer);
  CHECK(!cache.find(key_of(1)));
  write(file, right);
  CHECK(cache.find(key_of(1)) == code_of(1));

  fs::copy_file(file, in.file_of(key_of(2)));  // whole, but another kernel's
  CHECK(!cache.find(key_of(2)));
  cache.keep(key_of(2), code_of(2));
  CHECK(cache.find(key_of(2)) == code_of(2));
}

TEST_CASE("what is no file of this user alone is not read, does not block, and is replaced if possible") {
  const scratch in;
  kernel_cache cache = in.cache();
  cache.keep(key_of(1), code_of(1));
  const fs::path file = in.file_of(key_of(1)), aside = in.at / "aside";
  const auto replaced = [&] {
    CHECK(!cache.find(key_of(1)));
    cache.keep(key_of(1), code_of(2));
    CHECK(cache.find(key_of(1)) == code_of(2));
    CHECK(in.files() == 1);
    cache.keep(key_of(1), code_of(1));
  };
  fs::rename(file, aside);
  fs::create_symlink(aside, file);
  replaced();
  CHECK(content(aside).size() == 64 + 40);  // it was not written through the link

  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  replaced();

  fs::permissions(file, fs::perms::group_write, fs::perm_options::add);
  replaced();
  if (geteuid() == 0) {
    REQUIRE(chown(file.c_str(), 65534, 65534) == 0);
    replaced();
  }

  fs::remove(file);
  fs::create_directory(file);
  CHECK(!cache.find(key_of(1)));
  cache.keep(key_of(1), code_of(2));
  CHECK(!cache.find(key_of(1)));
  CHECK(fs::is_directory(file));
  CHECK(in.files() == 1);
}

TEST_CASE("a folder that others could have filled, or that cannot be used, is said once and not used") {
  const scratch in;
  const auto refused = [&](const fs::path& folder, const char* why) {
    kernel_cache cache(folder.string(), 1 << 20);
    cache.keep(key_of(1), code_of(1));
    CHECK(!cache.find(key_of(1)));
    CAPTURE(cache.refusal());
    CHECK(cache.refusal().find(folder.string() + ": " + why) != std::string::npos);
  };
  in.cache().keep(key_of(1), code_of(1));
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_write, fs::perms::all}) {
    fs::permissions(in.kernels(), others | fs::perms::owner_all);
    refused(in.kernels(), "other users may write to it");
  }
  fs::permissions(in.kernels(), fs::perms::owner_all | fs::perms::group_read | fs::perms::others_read);
  CHECK(in.cache().find(key_of(1)) == code_of(1));

  if (geteuid() == 0) {
    REQUIRE(chown(in.kernels().c_str(), 65534, 65534) == 0);
    refused(in.kernels(), "belongs to another user");
    REQUIRE(chown(in.kernels().c_str(), 0, 0) == 0);
  } else {
    refused("/", "belongs to another user");
  }
  write(in.at / "file", {});
  refused(in.at / "file", "cannot be opened: Not a directory");
  refused(in.at / "file/below", "cannot be opened: Not a directory");

  const fs::path said = in.at / "said";
  CHECK(in_process([&] {
          const int to = ::open(said.c_str(), O_WRONLY | O_CREAT, 0600);
          dup2(to, 2);
          for (int i = 0; i < 3; ++i) {
            kernel_cache cache((in.at / "file/again").string(), 1 << 20);
            (void)cache.find(key_of(1));
            (void)cache.find(key_of(2));
          }
          return 0;
        }) == 0);
  const bytes text = content(said);
  CHECK(std::string(text.begin(), text.end()) ==
        "weft: compiled kernels are not cached: " + (in.at / "file/again").string() +
            ": cannot be opened: Not a directory\n");
}

TEST_CASE("a folder that cannot be written, and a disk that is full, leave what was there") {
  const scratch in;
  in.cache().keep(key_of(1), code_of(1));
  CHECK(in_process([&] {
          signal(SIGXFSZ, SIG_IGN);
          const rlimit most{1000, 1000};
          setrlimit(RLIMIT_FSIZE, &most);
          kernel_cache cache = in.cache();
          cache.keep(key_of(1), code_of(1, 2000));
          cache.keep(key_of(2), code_of(2, 2000));
          return cache.find(key_of(1)) == code_of(1) && !cache.find(key_of(2)) ? 0 : 1;
        }) == 0);
  CHECK(in.files() == 1);

  fs::permissions(in.at, fs::perms::owner_all | fs::perms::others_all);
  CHECK(in_process([&] {
          if (geteuid() == 0) {  // file modes do not restrict root
            for (const fs::path& path :
                 {in.at, in.kernels().parent_path(), in.kernels(), in.file_of(key_of(1))})
              if (chown(path.c_str(), 65534, 65534) != 0) return 2;
            if (setgid(65534) != 0 || setuid(65534) != 0) return 3;
          }
          fs::permissions(in.kernels(), fs::perms::owner_read | fs::perms::owner_exec);
          kernel_cache cache = in.cache();
          cache.keep(key_of(1), code_of(2));
          cache.keep(key_of(2), code_of(2));
          const bool as_before = cache.find(key_of(1)) == code_of(1) && !cache.find(key_of(2));
          kernel_cache below((in.kernels() / "below").string(), 1 << 20);
          below.keep(key_of(1), code_of(1));
          fs::permissions(in.kernels(), fs::perms::owner_all);
          return as_before && !below.find(key_of(1)) ? 0 : 1;
        }) == 0);
  CHECK(in.files() == 1);
}

TEST_CASE("processes and threads that write and read the same keys at once find whole files or none") {
  const scratch in;
  const auto work = [&](int writer) {
    kernel_cache cache = in.cache();
    for (int round = 0; round < 200; ++round) {
      const int key = round % 5;
      cache.keep(key_of(key), code_of(writer, static_cast<std::size_t>(1000 * writer)));
      const auto found = cache.find(key_of((key + 2) % 5));
      if (found && *found != code_of(static_cast<int>(found->size() / 1000), found->size())) return 1;
      if (!cache.find(key_of(key))) return 2;
    }
    return 0;
  };
  std::vector<pid_t> children;
  for (int writer = 1; writer <= 3; ++writer) {
    children.push_back(fork());
    if (children.back() == 0) _exit(work(writer));
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(in.files() == 5);

  kernel_cache shared = in.cache();
  std::vector<std::thread> threads;
  int wrong[4]{};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        shared.keep(key_of(10 + round % 3), code_of(round % 3));
        wrong[t] += shared.find(key_of(10 + round % 3)) != code_of(round % 3);
      }
    });
  for (std::thread& t : threads) t.join();
  for (const int w : wrong) CHECK(w == 0);
}

TEST_CASE("beyond the limit those go that were not used for the longest time, and nothing that is not ours") {
  const scratch in;
  const auto aged = [&](int number, int seconds) {  // used so long ago
    timespec times[2]{{0, UTIME_OMIT}, {}};
    clock_gettime(CLOCK_REALTIME, &times[1]);
    times[1].tv_sec -= seconds;
    REQUIRE(utimensat(AT_FDCWD, in.file_of(key_of(number)).c_str(), times, 0) == 0);
  };
  kernel_cache cache = in.cache(1000);
  for (int i = 0; i < 8; ++i) cache.keep(key_of(i), code_of(i, 36));  // 100 bytes each
  for (int i = 0; i < 8; ++i) aged(i, 100 - i);
  CHECK(cache.find(key_of(0)));  // used now
  write(in.kernels() / "notes.txt", bytes(5000));
  const std::string some = in.file_of(key_of(50)).string();
  for (const char* end : {".0123456789abcdef", ".0123456789abcdee", ".txt"}) write(some + end, bytes(10));
  timespec hours[2]{{}, {}};
  clock_gettime(CLOCK_REALTIME, &hours[1]);
  hours[1].tv_sec -= 7200;
  utimensat(AT_FDCWD, (some + ".0123456789abcdef").c_str(), hours, 0);
  utimensat(AT_FDCWD, (some + ".txt").c_str(), hours, 0);

  cache.keep(key_of(8), code_of(8, 36));
  cache.keep(key_of(9), code_of(9, 36));
  CHECK(in.files() == 10 + 4);  // full, not more
  cache.keep(key_of(10), code_of(10, 36));
  for (const int gone : {1, 2, 3, 4}) CHECK(!cache.find(key_of(gone)));
  for (const int there : {0, 5, 6, 7, 8, 9, 10}) CHECK(cache.find(key_of(there)) == code_of(there, 36));
  CHECK(fs::exists(in.kernels() / "notes.txt"));
  CHECK(fs::exists(some + ".txt"));
  CHECK(fs::exists(some + ".0123456789abcdee"));   // another process may be writing it
  CHECK(!fs::exists(some + ".0123456789abcdef"));  // left by a process that ended during a write

  cache.keep(key_of(20), code_of(20, 937));  // larger than the limit of the whole cache
  CHECK(!cache.find(key_of(20)));
  CHECK(cache.find(key_of(10)));
  CHECK(!fs::exists(in.file_of(key_of(20))));
  cache.keep(key_of(21), code_of(21, 900));
  CHECK(cache.find(key_of(21)) == code_of(21, 900));
  kernel_cache smaller = in.cache(300);  // at its first file, it counts the files that others wrote
  smaller.keep(key_of(22), code_of(22, 36));
  CHECK(smaller.find(key_of(22)));
  CHECK(!in.cache().find(key_of(21)));
  kernel_cache none = in.cache(0);
  none.keep(key_of(23), code_of(23));
  CHECK(!none.find(key_of(22)));
}

TEST_CASE("the environment says where, and how much") {
  const setting chosen("WEFT_KERNEL_CACHE", "/a/b"), caches("XDG_CACHE_HOME", "/x"), home("HOME", "/h"),
      limit("WEFT_KERNEL_CACHE_BYTES", nullptr);
  CHECK(kernel_cache::default_folder() == "/a/b");
  chosen.set("");
  CHECK(kernel_cache::default_folder() == "");
  chosen.set(nullptr);
  CHECK(kernel_cache::default_folder() == "/x/weft/kernels");
  for (const char* none : {"", "relative"}) {
    caches.set(none);
    CHECK(kernel_cache::default_folder() == "/h/.cache/weft/kernels");
  }
  caches.set(nullptr);
  CHECK(kernel_cache::default_folder() == "/h/.cache/weft/kernels");
  home.set(nullptr);
  CHECK(kernel_cache::default_folder() == "");
  kernel_cache off(kernel_cache::default_folder(), 1000);
  off.keep(key_of(1), code_of(1));
  CHECK(!off.find(key_of(1)));
  CHECK(off.refusal() == "");

  CHECK(kernel_cache::default_bytes() == std::uint64_t{1} << 30);
  limit.set("123456");
  CHECK(kernel_cache::default_bytes() == 123456);
  for (const char* wrong : {"10G", "-1", "99999999999999999999999"}) {
    limit.set(wrong);
    CHECK(kernel_cache::default_bytes() == std::uint64_t{1} << 30);
  }
}

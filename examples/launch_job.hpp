// SPDX-License-Identifier: MIT
// The processes of one run, which start and end together.
//
// Each leads a process group, so that the processes it starts end with it. If the launcher is killed, the
// kernel signals them, and a guard process, which notices that a pipe is closed, kills their groups.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace launcher {

using clock = std::chrono::steady_clock;
using std::chrono::seconds;

/// Exit codes that supervised programs use.
inline constexpr int done = 0, bad_use = 2, others_failed = 3, interrupted = 130;
inline constexpr int cannot_run = 126, not_found = 127;

/// A command and its additional environment variables.
struct command {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> variables;
};

class job {
 public:
  /// `polite`: the signal that asks the processes to save and end.
  explicit job(int polite) : polite_(polite) {
    if (::pipe2(alive_, O_CLOEXEC) != 0)
      throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  }
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job() {
    signal_all(SIGKILL);
    while (reap()) ::usleep(1000);
    if (guard_ > 0) {
      ::kill(guard_, SIGKILL);
      ::waitpid(guard_, nullptr, 0);
    }
    ::close(alive_[0]);
    ::close(alive_[1]);
  }

  void start(const command& c, int when_orphaned) {
    std::fflush(nullptr);
    const pid_t parent = ::getpid(), child = ::fork();
    if (child < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    if (child == 0) become(c, parent, when_orphaned);
    ::setpgid(child, child);  // in both processes, as either may run first
    processes_.push_back({child, -1});
  }
  /// Call it once all processes have been started. If the launcher dies, their groups are sent the signal
  /// `first`, then SIGKILL; with 0, the first signal is left to `when_orphaned`.
  void guard(int first) {
    guard_ = ::fork();
    if (guard_ == 0) watch_launcher(first);
  }

  /// Collects processes that have ended; returns whether some still run.
  bool reap() {
    bool left = false;
    for (process& p : processes_) {
      if (p.code >= 0) continue;
      siginfo_t ended{};
      if (::waitid(P_PID, static_cast<id_t>(p.id), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          ended.si_pid == p.id) {
        ::kill(-p.id, SIGKILL);  // processes it left behind, before its id can be reused
        int status = 0;
        ::waitpid(p.id, &status, 0);
        p.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        codes_.push_back(p.code);
      }
      left |= p.code < 0;
    }
    if (failed() && plan_.empty())
      plan_ = {{clock::now() + to_speak, SIGTERM}, {clock::now() + 2 * to_speak, SIGKILL}};
    return left;
  }

  /// Asks the processes to end; kills them after `grace`, or never if it is 0.
  void ask(seconds grace) {
    asked_ = true;
    plan_ = {{clock::now(), polite_}};
    if (grace.count() == 0) return;
    plan_.push_back({clock::now() + grace, SIGTERM});
    plan_.push_back({clock::now() + grace + (polite_ == SIGTERM ? seconds(0) : to_speak), SIGKILL});
  }
  /// Ends the processes now: on SIGTERM, mpirun kills its ranks on all machines, which takes it 2 seconds.
  void kill() {
    plan_ = {{clock::now(), SIGTERM}, {clock::now() + (polite_ == SIGTERM ? seconds(0) : to_speak), SIGKILL}};
  }
  bool asked() const { return asked_; }

  /// Sends the signals that are due.
  void escalate() {
    while (!plan_.empty() && plan_.front().first <= clock::now()) {
      const int which = plan_.front().second;
      plan_.pop_front();
      // At a second SIGTERM, mpirun ends at once and leaves its ranks behind.
      if (which != SIGTERM || !std::exchange(terminated_, true)) signal_all(which);
    }
  }

  /// The exit code of the first process that failed by itself, not because others had failed.
  int code() const {
    const auto own =
        std::find_if(codes_.begin(), codes_.end(), [](int c) { return c != done && c != others_failed; });
    if (own != codes_.end()) return *own;
    return failed() ? others_failed : done;
  }
  /// The number of processes that failed by themselves. A process that is asked to end before it handles the
  /// signal dies from it, and does not count.
  int lost() const {
    return static_cast<int>(std::count_if(codes_.begin(), codes_.end(), [this](int c) {
      return c != done && c != others_failed && c != interrupted && !(asked_ && c == 128 + polite_);
    }));
  }
  /// Whether all failed with the same code, none by a signal: the program is at fault, and no rank is lost.
  bool failed_as_one() const {
    return !codes_.empty() && codes_[0] != done && codes_[0] < 126 &&
           std::count(codes_.begin(), codes_.end(), codes_[0]) == static_cast<std::ptrdiff_t>(codes_.size());
  }

 private:
  static constexpr seconds to_speak{5};  // for the other processes to report why they end
  struct process {
    pid_t id;
    int code;  // -1: has not ended
  };

  bool failed() const {
    return std::any_of(codes_.begin(), codes_.end(), [](int c) { return c != done && c != interrupted; });
  }

  [[noreturn]] static void become(const command& c, pid_t parent, int when_orphaned) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, when_orphaned);
    if (::getppid() != parent) ::_exit(1);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (const int nothing = ::open("/dev/null", O_RDONLY); nothing > 0) ::dup2(nothing, 0);
    for (const char* outer : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}) ::unsetenv(outer);
    for (const auto& [name, value] : c.variables) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words;
    for (const std::string& w : c.words) words.push_back(const_cast<char*>(w.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    const int why = errno;
    std::fprintf(stderr, "launch: %s: %s\n", words[0], std::strerror(why));
    ::_exit(why == ENOENT ? not_found : cannot_run);
  }

  /// The guard process: ends the groups when the launcher is gone.
  [[noreturn]] void watch_launcher(int first) {
    ::setsid();
    ::close(alive_[1]);
    if (const int nothing = ::open("/dev/null", O_RDWR); nothing >= 0)
      for (const int fd : {0, 1, 2}) ::dup2(nothing, fd);  // so that no reader waits for this process
    char none = 0;
    while (::read(alive_[0], &none, 1) < 0 && errno == EINTR) {}
    signal_all(first);
    if (first != SIGKILL) {
      ::sleep(static_cast<unsigned>(to_speak.count()));
      signal_all(SIGKILL);
    }
    ::_exit(0);
  }

  void signal_all(int which) const {
    for (const process& p : processes_)
      if (p.code < 0) {
        ::kill(-p.id, which);
        if (which != SIGKILL) ::kill(-p.id, SIGCONT);  // a stopped process would not handle it
      }
  }

  int polite_;
  int alive_[2];  // a pipe whose write end is open as long as the launcher lives
  pid_t guard_ = -1;
  std::vector<process> processes_;
  std::vector<int> codes_;  // in the order in which the processes ended
  std::deque<std::pair<clock::time_point, int>> plan_;
  bool asked_ = false, terminated_ = false;
};

}  // namespace launcher

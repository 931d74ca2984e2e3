// SPDX-License-Identifier: MIT
// The processes of one run: they start and end together.
//
// Each is the leader of a process group, so that what it starts ends with it. When the launcher is
// killed, the kernel kills them, and a guard, which notices that a pipe is closed, what they have started.
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

/// What exit codes mean; a program that is supervised keeps to them.
inline constexpr int done = 0, bad_use = 2, others_failed = 3, interrupted = 130;
inline constexpr int cannot_run = 126, not_found = 127;

/// A command and the variables that are set for it.
struct command {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> variables;
};

class job {
 public:
  /// `polite`: asks the processes to save and end.
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
    ::setpgid(child, child);  // here and there: whoever comes first
    processes_.push_back({child, -1});
  }
  /// To be called when all have been started: what their groups are sent when the launcher dies, before
  /// SIGKILL; 0 leaves it to `when_orphaned`.
  void guard(int first) {
    guard_ = ::fork();
    if (guard_ == 0) watch_launcher(first);
  }

  /// Takes note of processes that have ended; whether some are left.
  bool reap() {
    bool left = false;
    for (process& p : processes_) {
      if (p.code >= 0) continue;
      siginfo_t ended{};
      if (::waitid(P_PID, static_cast<id_t>(p.id), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          ended.si_pid == p.id) {
        ::kill(-p.id, SIGKILL);  // what it has left behind, while the number is still its own
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

  /// Asks them to end; kills them after `grace`, or never if it is 0.
  void ask(seconds grace) {
    asked_ = true;
    plan_ = {{clock::now(), polite_}};
    if (grace.count() == 0) return;
    plan_.push_back({clock::now() + grace, SIGTERM});
    plan_.push_back({clock::now() + grace + (polite_ == SIGTERM ? seconds(0) : to_speak), SIGKILL});
  }
  /// Ends them now: at SIGTERM mpirun kills its ranks, on all machines, which takes it 2 seconds.
  void kill() {
    plan_ = {{clock::now(), SIGTERM}, {clock::now() + (polite_ == SIGTERM ? seconds(0) : to_speak), SIGKILL}};
  }
  bool asked() const { return asked_; }

  /// Sends what is due.
  void escalate() {
    while (!plan_.empty() && plan_.front().first <= clock::now()) {
      const int which = plan_.front().second;
      plan_.pop_front();
      // mpirun ends at once at a second SIGTERM, and leaves its ranks behind.
      if (which != SIGTERM || !std::exchange(terminated_, true)) signal_all(which);
    }
  }

  /// The code of the one at fault: of the first to fail on its own account.
  int code() const {
    const auto own =
        std::find_if(codes_.begin(), codes_.end(), [](int c) { return c != done && c != others_failed; });
    if (own != codes_.end()) return *own;
    return failed() ? others_failed : done;
  }
  /// Processes that failed on their own account. One that is asked before it listens ends by the signal.
  int lost() const {
    return static_cast<int>(std::count_if(codes_.begin(), codes_.end(), [this](int c) {
      return c != done && c != others_failed && c != interrupted && !(asked_ && c == 128 + polite_);
    }));
  }
  /// All have failed in the same way, and none because of a signal: it is the program, and no rank is lost.
  bool failed_as_one() const {
    return !codes_.empty() && codes_[0] != done && codes_[0] < 126 &&
           std::count(codes_.begin(), codes_.end(), codes_[0]) == static_cast<std::ptrdiff_t>(codes_.size());
  }

 private:
  static constexpr seconds to_speak{5};  // for the others to say why
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

  /// As a process of its own: ends the groups when the launcher is gone.
  [[noreturn]] void watch_launcher(int first) {
    ::setsid();
    ::close(alive_[1]);
    if (const int nothing = ::open("/dev/null", O_RDWR); nothing >= 0)
      for (const int fd : {0, 1, 2}) ::dup2(nothing, fd);  // nobody waits for us to close them
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
        if (which != SIGKILL) ::kill(-p.id, SIGCONT);  // one that is stopped would not hear it
      }
  }

  int polite_;
  int alive_[2];  // a pipe, open for writing as long as the launcher lives
  pid_t guard_ = -1;
  std::vector<process> processes_;
  std::vector<int> codes_;  // in the order in which they ended
  std::deque<std::pair<clock::time_point, int>> plan_;
  bool asked_ = false, terminated_ = false;
};

}  // namespace launcher

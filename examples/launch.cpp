// SPDX-License-Identifier: MIT
// Starts a program on many ranks, and restarts it when ranks are lost; see the usage text below.
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <memory>
#include <random>
#include <thread>

#include "launch_job.hpp"

namespace {

using namespace launcher;

constexpr const char* usage = R"(usage: launch [OPTION...] PROGRAM [ARGUMENT...]

Starts PROGRAM on several ranks. Defaults are in parentheses.

  -n RANKS                  number of ranks (one per hardware thread of this machine)
  -H HOST[:RANKS],...       hosts to start them on, by mpirun (this machine)
  -c gloo|mpi               with mpi, ranks of this machine are started by mpirun, too (gloo)
  -g SECONDS                how long ranks that were asked to exit may take to save (60)
  -r RESTARTS               restarts the program when ranks are lost, at most so many times (0)
  -m MICRO                  with -r: micro-batches of a step on all ranks together (RANKS / COPY)
  -p COPY                   with -r: ranks of one copy of the model, the stages of a pipeline, for example (1)
  -b SECONDS                with -r: how long until a lost place is tried again (300)
  -h                        prints this text

  launch -n 4 train_gpt --comm gloo ...                    on this machine
  launch -n 8 -H node1:6,node2:2 train_gpt --comm mpi ...  on two hosts, by mpirun
  launch -n 4 -r 100 -m 8 train_gpt --checkpoint run ...   continues when ranks are lost

Environment of a rank
  WORLD_SIZE, RANK, LOCAL_WORLD_SIZE and LOCAL_RANK say which rank it is (under mpirun, mpirun's variables);
  MASTER_ADDR, a name of the first host, MASTER_PORT and WEFT_JOB_TOKEN say where the ranks meet.

Failures and signals
  When a rank fails, the others have 5 seconds to report why; then they are terminated, and killed 5 seconds
  later. SIGINT, SIGTERM and SIGHUP ask the ranks to save and exit (they get SIGTERM, through mpirun SIGUSR1).
  Ranks still running after -g seconds are killed; a second signal kills them at once (exit code 130). When
  launch itself is killed, so are the ranks.

Exit codes of a rank
  0 done, 1 failed, 2 bad usage or a disk that cannot be written, 3 failed because of another rank, 130 asked
  to exit, and saved. launch returns the code of the rank at fault.

Restarts
  With -r, the program is started again on the ranks that are left, with --comm, --accumulate MICRO/copies and
  --resume, unless its code is 0, 2 or 130, it cannot be run, or all ranks fail alike. The number of ranks is
  always a multiple of COPY (--mesh pp=COPY,dp=auto). When a lost place can be tried again, the ranks are
  asked to save and exit, and more are started. With -H, a host is used while `ssh HOST true` succeeds,
  which is tried every -b seconds: if a host of the job fails to answer twice, the ranks are asked to save and
  exit, and are started without it.
)";

struct bad_usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct host {
  std::string name;
  int ranks;
};

struct options {
  int ranks = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<host> hosts;
  std::string comm = "gloo";
  int restarts = 0, micro = 0, copy = 1;
  seconds back{300}, grace{60};
  std::vector<std::string> program;

  bool supervises() const { return restarts > 0; }
  bool by_mpirun() const { return !hosts.empty() || comm == "mpi"; }
};

int number(const std::string& flag, const std::string& text, int least) {
  int n = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), n);
  if (r.ec != std::errc() || r.ptr != text.data() + text.size() || n < least)
    throw bad_usage(flag + " " + text + ": expected a number" +
                    (least > 0 ? " above 0" : " that is not negative"));
  return n;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find(at, from), text.size());
    if (to > from) parts.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

/// Parses "node1:6,node2"; hosts without a number get an equal share of the ranks.
std::vector<host> parse_hosts(const std::string& text, int ranks) {
  std::vector<host> all;
  const std::vector<std::string> parts = split(text, ',');
  const int each =
      parts.empty() ? 0 : (ranks + static_cast<int>(parts.size()) - 1) / static_cast<int>(parts.size());
  for (const std::string& p : parts) {
    const std::size_t colon = p.find(':');
    all.push_back(
        {p.substr(0, colon), colon == std::string::npos ? each : number("-H", p.substr(colon + 1), 1)});
  }
  if (all.empty()) throw bad_usage("-H " + text + ": expected hosts");
  return all;
}

options parse(int count, char** values) {
  options o;
  std::string hosts;
  ::opterr = 0;
  for (int flag; (flag = ::getopt(count, values, "+n:H:c:r:m:p:b:g:h")) != -1;) {
    const std::string value = ::optarg ? ::optarg : "";
    switch (flag) {
      case 'n': o.ranks = number("-n", value, 1); break;
      case 'H': hosts = value; break;
      case 'c': o.comm = value; break;
      case 'r': o.restarts = number("-r", value, 0); break;
      case 'm': o.micro = number("-m", value, 1); break;
      case 'p': o.copy = number("-p", value, 1); break;
      case 'b': o.back = seconds(number("-b", value, 1)); break;
      case 'g': o.grace = seconds(number("-g", value, 1)); break;
      case 'h': std::fputs(usage, stdout); std::exit(0);
      default:
        throw bad_usage(std::string("-") + static_cast<char>(::optopt) +
                        ": unknown flag, or missing value; see -h");
    }
  }
  o.program.assign(values + ::optind, values + count);
  if (o.program.empty()) throw bad_usage("expected a program; see -h");
  if (o.comm != "gloo" && o.comm != "mpi") throw bad_usage("-c " + o.comm + ": expected gloo or mpi");
  if (!hosts.empty()) o.hosts = parse_hosts(hosts, o.ranks);
  if (!o.supervises() && (o.micro || o.copy > 1)) throw bad_usage("-m and -p: only allowed with -r");
  if (o.ranks % o.copy)
    throw bad_usage("-p " + std::to_string(o.copy) + ": does not divide " + std::to_string(o.ranks) +
                    " ranks");
  const int copies = o.ranks / o.copy;
  if (o.micro == 0) o.micro = copies;
  if (o.micro % copies)
    throw bad_usage("-m " + std::to_string(o.micro) + ": expected a multiple of " + std::to_string(copies) +
                    (o.copy > 1 ? " copies" : " ranks"));
  if (o.supervises() && std::find(o.program.begin(), o.program.end(), "--checkpoint") == o.program.end())
    throw bad_usage("-r: the program needs --checkpoint DIR to resume from");
  return o;
}

/// The hosts that answer, in the given order.
std::vector<host> reachable(const std::vector<host>& hosts) {
  const char* const agent = std::getenv("OMPI_MCA_plm_rsh_agent");
  std::vector<std::pair<host, pid_t>> asked;
  for (const host& h : hosts) {
    std::vector<std::string> words = split(agent ? agent : "ssh", ' ');
    for (const char* w : {"-o", "BatchMode=yes", "-o", "ConnectTimeout=5"}) words.emplace_back(w);
    words.insert(words.end(), {h.name, "true"});
    const pid_t child = ::fork();
    if (child == 0) {
      std::vector<char*> all;
      for (std::string& w : words) all.push_back(w.data());
      all.push_back(nullptr);
      const int nothing = ::open("/dev/null", O_RDWR);
      for (const int fd : {0, 1, 2}) ::dup2(nothing, fd);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execvp(all[0], all.data());
      ::_exit(not_found);
    }
    asked.emplace_back(h, child);
  }
  std::vector<host> there;
  const auto until = clock::now() + seconds(10);
  for (const auto& [h, child] : asked) {
    int status = -1;
    pid_t ended = 0;
    while (child > 0 && (ended = ::waitpid(child, &status, WNOHANG)) == 0 && clock::now() < until)
      ::usleep(10'000);
    if (child > 0 && ended == 0) ::kill(child, SIGKILL), ::waitpid(child, &status, 0);
    if (child > 0 && status == 0) there.push_back(h);
  }
  return there;
}

/// A port of this machine, reserved for rank 0: bound but not listening, so that the system assigns it to no
/// other process, while rank 0 can listen on it with SO_REUSEADDR.
class kept_port {
 public:
  kept_port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    const int on = 1;
    if (::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(fd_, reinterpret_cast<sockaddr*>(&at), size) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
      throw std::runtime_error(std::string("no port is free: ") + std::strerror(errno));
    number_ = ntohs(at.sin_port);
  }
  kept_port(const kept_port&) = delete;
  kept_port& operator=(const kept_port&) = delete;
  ~kept_port() { ::close(fd_); }
  int number() const { return number_; }

 private:
  int fd_, number_ = 0;
};

std::string variable_or(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value && *value ? value : otherwise;
}

std::string drawn_token() {
  std::random_device from;
  std::string text;
  for (int i = 0; i < 32; ++i) text += "0123456789abcdef"[from() % 16];
  return text;
}

/// Starts, watches and restarts the job.
class supervisor {
 public:
  explicit supervisor(const options& o)
      : o_(o), token_(variable_or("WEFT_JOB_TOKEN", drawn_token())), hosts_(o.hosts) {
    ::sigemptyset(&signals_);
    for (const int s : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals_, s);
    ::sigprocmask(SIG_BLOCK, &signals_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
  }

  /// Runs the job until it ends for good; returns the exit code.
  int run() {
    if (o_.supervises()) hosts_ = reachable(o_.hosts);
    for (int restart = 0;; ++restart) {
      if (hosts_.empty() && !o_.hosts.empty()) return say("no host can be reached"), others_failed;
      ranks_ = ranks_for(places());
      if (ranks_ == 0) return say("there are not enough ranks for a copy of the model"), others_failed;
      job now(o_.by_mpirun() ? SIGUSR1 : SIGTERM);
      regroups_ = false;
      start(now, restart > 0);
      watch(now);
      const int code = now.code();
      if (times_told_ > 1 && code != done) return interrupted;
      if (o_.supervises() && code != done && times_told_ == 0) take_note(now);
      if (regroups_ && code != done && now.lost() == 0 && times_told_ == 0) {
        --restart;  // does not count: nothing was lost
        continue;
      }
      const bool final =
          code == done || code == bad_use || code == interrupted || code == cannot_run || code == not_found;
      if (!o_.supervises() || final || times_told_ > 0) return code;
      if (!o_.by_mpirun() && now.failed_as_one() && code != others_failed)
        return say("all ranks failed alike, so no rank counts as lost"), code;
      if (restart == o_.restarts)
        return say("gave up after " + std::to_string(o_.restarts) + " restarts"), code;
      const int next = ranks_for(places());
      if (next == 0)
        return say("gave up: " + std::to_string(std::max(0, places())) +
                   " ranks are left, but a copy of the model needs " + std::to_string(o_.copy)),
               code;
      say("the job of " + std::to_string(ranks_) + " ranks ended with code " + std::to_string(code) +
          "; going on from the last checkpoint with " + std::to_string(next));
    }
  }

 private:
  static void say(const std::string& text) { std::fprintf(stderr, "launch: %s\n", text.c_str()); }

  /// The places for ranks now: those on reachable hosts, minus recent losses.
  int places() {
    std::erase_if(losses_, [&](clock::time_point t) { return clock::now() - t >= o_.back; });
    int all = o_.hosts.empty() ? o_.ranks : 0;
    for (const host& h : hosts_) all += h.ranks;
    return std::min(all, o_.ranks) - static_cast<int>(losses_.size());
  }
  /// Records which places a job has lost: those on hosts that no longer answer, and others.
  void take_note(const job& ended) {
    // Under mpirun, a rank that hangs has no exit code of its own.
    int lost = o_.by_mpirun() && !regroups_ ? std::max(1, ended.lost()) : ended.lost();
    hosts_ = reachable(o_.hosts);
    for (const host& h : used_) lost -= is_in(hosts_, h) ? 0 : h.ranks;
    for (; lost > 0; --lost) losses_.push_back(clock::now());
  }
  static bool is_in(const std::vector<host>& all, const host& h) {
    return std::any_of(all.begin(), all.end(), [&](const host& a) { return a.name == h.name; });
  }
  /// The most ranks that can split the micro-batches of a step evenly; 0 if too few for a copy of the model.
  int ranks_for(int places) const {
    if (!o_.supervises()) return o_.ranks;
    int copies = std::clamp(places, 1, o_.ranks) / o_.copy;
    while (copies > 0 && o_.micro % copies) --copies;
    return copies * o_.copy;
  }

  void start(job& j, bool again) {
    command c{o_.program, {{"WEFT_JOB_TOKEN", token_}}};
    if (o_.supervises()) {
      const std::string each = std::to_string(o_.micro / (ranks_ / o_.copy));
      c.words.insert(c.words.end(), {"--comm", o_.comm, "--accumulate", each});
      if (again) c.words.emplace_back("--resume");
    }
    used_ = hosts_;
    port_.reset();
    if (o_.hosts.empty()) port_ = std::make_unique<kept_port>();
    const int port = port_ ? port_->number() : 20'000 + static_cast<int>(std::random_device()() % 20'000);
    c.variables.emplace_back("MASTER_PORT", variable_or("MASTER_PORT", std::to_string(port)));
    c.variables.emplace_back("MASTER_ADDR",
                             variable_or("MASTER_ADDR", hosts_.empty() ? "127.0.0.1" : hosts_[0].name));
    const std::string n = std::to_string(ranks_);
    if (o_.by_mpirun()) {
      std::vector<std::string> words{"mpirun", "-n", n};
      std::string list;
      for (const host& h : hosts_)
        (list += list.empty() ? "" : ",").append(h.name).append(":").append(std::to_string(h.ranks));
      if (list.empty()) words.emplace_back("--oversubscribe");
      else
        words.insert(words.end(),
                     {"--host", list, "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "WEFT_JOB_TOKEN"});
      c.words.insert(c.words.begin(), words.begin(), words.end());
      // hwloc's OpenCL plugin loads drivers into mpirun, and PoCL's LLVM handles SIGUSR1 itself.
      const std::string before = variable_or("HWLOC_COMPONENTS", "");
      c.variables.emplace_back("HWLOC_COMPONENTS", before + (before.empty() ? "-opencl" : ",-opencl"));
      j.start(c, SIGTERM);
    } else {
      c.variables.insert(c.variables.end(),
                         {{"WORLD_SIZE", n}, {"LOCAL_WORLD_SIZE", n}, {"RANK", ""}, {"LOCAL_RANK", ""}});
      for (int r = 0; r < ranks_; ++r) {
        (c.variables.end() - 2)->second = (c.variables.end() - 1)->second = std::to_string(r);
        j.start(c, SIGKILL);
      }
    }
    // The kernel sends mpirun a SIGTERM; a second one would end mpirun at once and leave its ranks behind.
    j.guard(o_.by_mpirun() ? 0 : SIGKILL);
  }

  /// Returns when all processes have ended.
  void watch(job& j) {
    auto looked = clock::now();
    bool is_cut_off = false;  // whether a host of this run is unreachable
    while (j.reap()) {
      const timespec second{1, 0};
      const int signal = ::sigtimedwait(&signals_, nullptr, &second);
      if (signal > 0 && signal != SIGCHLD) {
        if (++times_told_ == 1) {
          say("the ranks are asked to save and end; the same signal again ends them at once");
          j.ask(o_.grace);
        } else if (times_told_ == 2) {
          j.kill();
        }
      }
      j.escalate();
      if (!o_.supervises() || times_told_ > 0) continue;
      if (!o_.hosts.empty() && !is_cut_off && clock::now() - looked >= o_.back) {
        hosts_ = reachable(o_.hosts);
        if (!are_there(used_)) hosts_ = reachable(o_.hosts);
        looked = clock::now();
        if (!are_there(used_)) {
          is_cut_off = true;
          say("a host does not answer; the ranks are asked to save and end, to go on without it");
          regroup(j, o_.grace);  // mpirun would wait for it
        }
      }
      if (!j.asked() && ranks_ < o_.ranks && ranks_for(places()) > ranks_) {
        say("a place is back; going on with more than " + std::to_string(ranks_) + " ranks");
        regroup(j, seconds(0));
      }
    }
  }
  bool are_there(const std::vector<host>& all) const {
    return std::all_of(all.begin(), all.end(), [&](const host& h) { return is_in(hosts_, h); });
  }
  void regroup(job& j, seconds grace) {
    regroups_ = true;
    j.ask(grace);
    j.escalate();
  }

  const options& o_;
  std::string token_;
  std::vector<host> hosts_, used_;  // hosts that answer; hosts of this run
  std::unique_ptr<kept_port> port_;  // of this run
  sigset_t signals_;
  std::vector<clock::time_point> losses_;
  int ranks_ = 0;
  int times_told_ = 0;     // how often signals told this process to end
  bool regroups_ = false;  // whether this run was asked to end, to continue on other places
};

}  // namespace

int main(int count, char** values) {
  try {
    const options o = parse(count, values);
    return supervisor(o).run();
  } catch (const bad_usage& e) {
    std::fprintf(stderr, "launch: %s\n", e.what());
    return bad_use;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "launch: %s\n", e.what());
    return 1;
  }
}

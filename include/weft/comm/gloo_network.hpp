// SPDX-License-Identifier: MIT
// The network that ranks over Gloo meet on: checked before Gloo sees it, as Gloo reads and leaks what
// is not there.
#pragma once

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <ctime>
#include <memory>
#include <string>

#include <gloo/transport/tcp/device.h>

#include <weft/base/error.hpp>

namespace weft {

/// Where a rank is reached by the others.
struct gloo_network {
  std::string address = "127.0.0.1";  // one of this machine
  std::string interface{};            // "eth0": its address instead, if it is given
  std::string token{};                // of the job: ranks prove to each other that they know it
};

namespace detail {

/// Gloo writes to connections without asking that a closed one be an error and not a signal, which
/// would end the process. While this lives, the signal waits, in this thread and those it starts; if
/// one came of it, it is gone afterwards.
class without_sigpipe {
 public:
  without_sigpipe() {
    sigset_t waiting;
    ::sigpending(&waiting);
    waited_ = ::sigismember(&waiting, SIGPIPE) == 1;
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  without_sigpipe(const without_sigpipe&) = delete;
  without_sigpipe& operator=(const without_sigpipe&) = delete;
  ~without_sigpipe() {
    const timespec now{};
    if (!waited_)
      while (::sigtimedwait(&pipe_, nullptr, &now) == -1 && errno == EINTR) {}
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool waited_;
};

inline bool has_address(const std::string& interface) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* i = all; i; i = i->ifa_next)
    found |= i->ifa_name == interface && i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
  ::freeifaddrs(all);
  return found;
}

/// Throws comm_error if there is no such network.
inline std::shared_ptr<::gloo::transport::Device> device_on(const gloo_network& network) {
  const without_sigpipe quiet;
  const bool by_address = network.interface.empty();
  const auto refuse = [&](const std::string& why) -> comm_error {
    return comm_error("weft: gloo: cannot use the network " + (by_address ? "address " + network.address : "interface " + network.interface) + ": " + why);
  };
  ::gloo::transport::tcp::attr how;
  if (by_address) {
    addrinfo* found = nullptr;  // Gloo does not look whether there is one
    if (const int failed = ::getaddrinfo(network.address.c_str(), nullptr, nullptr, &found)) throw refuse(::gai_strerror(failed));
    ::freeaddrinfo(found);
    how.hostname = network.address;
  } else {
    if (!has_address(network.interface)) throw refuse("it has no address");  // Gloo says so too, and leaks
    how.iface = network.interface;
  }
  try {
    return ::gloo::transport::tcp::CreateDevice(how);
  } catch (const std::exception& e) {  // not all that Gloo throws is a gloo::Exception
    throw refuse(e.what());
  }
}

}  // namespace detail
}  // namespace weft

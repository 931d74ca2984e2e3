// SPDX-License-Identifier: MIT
// The network for ranks over Gloo. It is checked before it is passed to Gloo, which dereferences and leaks
// missing addresses.
#pragma once

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <memory>
#include <string>

#include <gloo/transport/tcp/device.h>

#include <weft/base/blocked_signals.hpp>
#include <weft/base/error.hpp>

namespace weft {

/// The address at which other ranks reach a rank.
struct gloo_network {
  std::string address = "127.0.0.1";  // of this machine
  std::string interface{};            // for example "eth0": its address is used instead of `address`
  std::string token{};                // of the job: ranks prove to each other that they know it
};

namespace detail {

/// The numeric address of this machine on the network. Throws usage_error if there is none.
inline std::string address_on(const gloo_network& network) {
  if (network.interface.empty()) return network.address;
  ifaddrs* all = nullptr;
  char text[NI_MAXHOST] = "";
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* i = all; i && !*text; i = i->ifa_next) {
      if (i->ifa_name != network.interface || !i->ifa_addr) continue;
      const auto family = i->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(i->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) *text = 0;
    }
    ::freeifaddrs(all);
  }
  if (!*text)
    throw usage_error("weft: gloo: cannot use the network interface " + network.interface +
                      ": it has no address");
  return text;
}

/// Creates a device of Gloo for the network. Throws usage_error if it does not exist.
inline std::shared_ptr<::gloo::transport::Device> device_on(const gloo_network& network) {
  const blocked_signals blocked{SIGPIPE};  // Gloo and its threads write to closed connections
  const bool by_address = network.interface.empty();
  const auto refuse = [&](const std::string& why) -> usage_error {
    return usage_error("weft: gloo: cannot use the network " +
                       (by_address ? "address " + network.address : "interface " + network.interface) +
                       ": " + why);
  };
  ::gloo::transport::tcp::attr how;
  if (by_address) {
    addrinfo* found = nullptr;  // Gloo does not check whether the lookup succeeds
    if (const int failed = ::getaddrinfo(network.address.c_str(), nullptr, nullptr, &found))
      throw refuse(::gai_strerror(failed));
    ::freeaddrinfo(found);
    how.hostname = network.address;
  } else {
    address_on(network);  // Gloo would report this as well, but leak
    how.iface = network.interface;
  }
  try {
    return ::gloo::transport::tcp::CreateDevice(how);
  } catch (const std::exception& e) {  // not all exceptions of Gloo are gloo::Exception
    throw refuse(e.what());
  }
}

}  // namespace detail
}  // namespace weft

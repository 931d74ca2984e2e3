// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/run_world.hpp>.
#pragma once

#include <cstdio>
#include <new>

#include <weft/base/config.hpp>
#include <weft/comm/run_world.hpp>

namespace weft {

WEFT_DEFINE int report_failure(const std::exception_ptr& what) {
  const auto say = [](const char* why, int code) { return std::fprintf(stderr, "%s\n", why), code; };
  try {
    std::rethrow_exception(what);
  } catch (const usage_error& e) { return say(e.what(), exit_codes::bad_use); } catch (const io_error& e) {
    return say(e.what(), exit_codes::bad_use);
  } catch (const comm_error& e) {
    return say(e.what(), exit_codes::others_failed);
  } catch (const std::bad_alloc&) {
    return say("the host is out of memory", exit_codes::failed);
  } catch (...) {
    return say(detail::reason_of(what).c_str(), exit_codes::failed);
  }
}

namespace detail {

WEFT_DEFINE transport transport_for(const launch& me) {
  switch (me.from) {
    case launch::launcher::mpirun: return transport::mpi;
    case launch::launcher::variables: return transport::gloo;
    case launch::launcher::none: return transport::threads;
  }
  return transport::threads;
}

}  // namespace detail
}  // namespace weft

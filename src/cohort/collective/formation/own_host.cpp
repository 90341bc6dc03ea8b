// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/own_host.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "cohort/core/random.h"
#include "cohort/net/host_proof.h"

namespace cohort::collective::formation {

std::string own_host() {
  return net::boot_id() + "/" + net::namespace_id("pid") + "/" + net::namespace_id("user") + "/" +
         std::to_string(::geteuid());
}

std::uint64_t host_hash(std::string_view host) { return mix_seed(0, host); }

bool has_ended(const Place& place) {
  static const std::uint64_t here = host_hash(own_host());
  return place.host == here && place.process > 0 &&
         ::kill(static_cast<pid_t>(place.process), 0) != 0 && errno == ESRCH;
}

}  // namespace cohort::collective::formation

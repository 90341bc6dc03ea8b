// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cohort/cluster/launchers.h"
#include "cohort/cluster/launchers/launched_process.h"
#include "cohort/cluster/launchers/rendezvous.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

using internal::environment_text;

cluster::LaunchedProcess this_process() {
  std::optional<cluster::LaunchedProcess> process = cluster::torchrun_process();
  if (!process) internal::required(cluster::kTorchrun, "RANK");  // throws
  return *std::move(process);
}

// torchrun's agent has a store, which outlives the processes and serves each start of them.
bool has_agent() { return environment_text("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

// The prefix of all keys. Another job, and another start, have another one.
std::string prefix_of_start() {
  return "cohort/" + environment_text("TORCHELASTIC_RUN_ID").value_or("") + "/" +
         environment_text("TORCHELASTIC_RESTART_COUNT").value_or("0") + "/";
}

}  // namespace

TorchrunResolver::TorchrunResolver(LauncherOptions options)
    : LauncherResolver(std::move(options), "torchrun", this_process().size.number()),
      rank_(this_process().rank.number()),
      size_(this_process().size.number()) {
  internal::required(cluster::kTorchrun, "MASTER_ADDR");
  internal::check_port(internal::required(cluster::kTorchrun, "MASTER_PORT").number(),
                       "MASTER_PORT");
}

std::vector<std::string> TorchrunResolver::addresses() const {
  const std::string address = internal::required(cluster::kTorchrun, "MASTER_ADDR").text;
  const std::int64_t port = internal::required(cluster::kTorchrun, "MASTER_PORT").number();
  cluster::Newcomer newcomer{.launcher = &cluster::kTorchrun,
                             .place = {.host = address,
                                       .port = static_cast<std::uint16_t>(port),
                                       .opens_it = rank_ == 0 && !has_agent()},
                             .prefix = prefix_of_start(),
                             .size = size_,
                             .rank = rank_,
                             .host = options().host};
  const std::string key =
      address + ":" + std::to_string(port) + newcomer.prefix + std::to_string(rank_);
  return cluster::meet_once(key,
                            [&] { return cluster::meet_in_store(newcomer, options().timeout); })
      .addresses;
}

}  // namespace cohort

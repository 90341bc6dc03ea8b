// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cohort/cluster/launchers.h"
#include "cohort/cluster/launchers/rendezvous.h"
#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

using internal::LauncherVariable;

constexpr internal::Launcher kDmlc{
    "dmlc",
    "see whether the scheduler runs, and DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT are its host and a "
    "free port there"};

LauncherVariable dmlc_variable(const char* name) { return internal::required(kDmlc, name); }

std::string job_of_role() {
  const std::string role = dmlc_variable("DMLC_ROLE").text;
  if (role == "scheduler") return "chief";
  if (role == "server") return "ps";
  COHORT_CHECK(role == "worker", ErrorCode::invalid_argument,
               "[cluster.dmlc] expected DMLC_ROLE scheduler, server or worker, got ",
               internal::quote(role));
  return role;
}

LauncherOptions with_jobs(LauncherOptions options) {
  COHORT_CHECK(options.jobs.empty(), ErrorCode::invalid_argument,
               "[cluster.dmlc] expected no LauncherOptions::jobs beside DMLC_ROLE, got ",
               options.jobs.size(), " jobs; leave them out, or unset DMLC_ROLE");
  options.jobs = {{"chief", 1},
                  {"ps", dmlc_variable("DMLC_NUM_SERVER").number()},
                  {"worker", dmlc_variable("DMLC_NUM_WORKER").number()}};
  return options;
}

std::int64_t dmlc_size() {
  return 1 + dmlc_variable("DMLC_NUM_SERVER").number() + dmlc_variable("DMLC_NUM_WORKER").number();
}

// The own place in its job, if the launcher says it.
std::optional<std::int64_t> given_index(const std::string& job, std::int64_t size) {
  if (job == "chief") return 0;
  const auto id = internal::variable(kDmlc, job == "ps" ? "DMLC_SERVER_ID" : "DMLC_WORKER_ID");
  if (!id) return std::nullopt;
  COHORT_CHECK(id->number() < size, ErrorCode::failed_precondition, "[cluster.dmlc] expected ",
               id->name, " below ", size, ", the number of such processes, got ", id->text);
  return id->number();
}

// The process, whose rank the scheduler gives where `rank` is not set.
cluster::MetProcesses met_at_scheduler(std::optional<std::int64_t> rank, std::int64_t rank_min,
                                       std::int64_t rank_max, const LauncherOptions& options) {
  const std::string host = dmlc_variable("DMLC_PS_ROOT_URI").text;
  const LauncherVariable port = dmlc_variable("DMLC_PS_ROOT_PORT");
  const cluster::Newcomer newcomer{.launcher = &kDmlc,
                                   .place = {.host = host,
                                             .port = static_cast<std::uint16_t>(port.number()),
                                             .opens_it = rank == 0},
                                   .prefix = "cohort/dmlc/",
                                   .size = dmlc_size(),
                                   .rank = rank,
                                   .rank_min = rank_min,
                                   .rank_max = rank_max,
                                   .host = options.host};
  const std::string own = rank ? std::to_string(*rank) : "from " + std::to_string(rank_min);
  return cluster::meet_once("dmlc " + own + " at " + host + ":" + port.text,
                            [&] { return cluster::meet_in_store(newcomer, options.timeout); });
}

}  // namespace

DmlcResolver::DmlcResolver(LauncherOptions options)
    : LauncherResolver(with_jobs(std::move(options)), "dmlc", dmlc_size()),
      role_(job_of_role()),
      index_(given_index(
          role_, dmlc_variable(role_ == "ps" ? "DMLC_NUM_SERVER" : "DMLC_NUM_WORKER").number())),
      servers_(dmlc_variable("DMLC_NUM_SERVER").number()),
      workers_(dmlc_variable("DMLC_NUM_WORKER").number()) {
  COHORT_CHECK(role_ == "chief" || (role_ == "ps" ? servers_ : workers_) > 0,
               ErrorCode::failed_precondition, "[cluster.dmlc] expected processes of DMLC_ROLE ",
               dmlc_variable("DMLC_ROLE").text, ", as this one is, got a number of 0 in ",
               role_ == "ps" ? "DMLC_NUM_SERVER" : "DMLC_NUM_WORKER");
  dmlc_variable("DMLC_PS_ROOT_URI");
  internal::check_port(dmlc_variable("DMLC_PS_ROOT_PORT").number(), "DMLC_PS_ROOT_PORT");
}

std::int64_t DmlcResolver::rank_min() const {
  return role_ == "chief" ? 0 : role_ == "ps" ? 1 : 1 + servers_;
}

std::int64_t DmlcResolver::rank() const {
  if (index_) return rank_min() + *index_;
  return met_at_scheduler(std::nullopt, rank_min(), rank_max(), options()).rank;
}

std::vector<std::string> DmlcResolver::addresses() const {
  std::optional<std::int64_t> rank;
  if (index_) rank = rank_min() + *index_;
  return met_at_scheduler(rank, rank_min(), rank_max(), options()).addresses;
}

std::int64_t DmlcResolver::rank_max() const {
  return role_ == "chief" ? 0 : role_ == "ps" ? servers_ : servers_ + workers_;
}

}  // namespace cohort

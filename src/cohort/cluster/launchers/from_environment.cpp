// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "cohort/cluster/chosen_resolver.h"
#include "cohort/cluster/launchers.h"
#include "cohort/cluster/resolvers.h"
#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/cluster/resolvers/ranked_jobs.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

using internal::environment_text;
using internal::TasksByJob;

constexpr const char* kForcing = "COHORT_CLUSTER_RESOLVER";
constexpr std::string_view kNone = "none";

// How many tasks one kind of variables tells of, and which of them this process is.
struct Claim {
  std::int64_t size = 0;
  std::optional<std::int64_t> rank = {};
};

std::optional<std::int64_t> number_in(const char* name) {
  const std::optional<std::string> text = environment_text(name);
  return text ? internal::integer_of_text(*text) : std::nullopt;
}

std::optional<Claim> claim_in(const char* rank, const char* size) {
  const std::optional<std::int64_t> number = number_in(size);
  if (!number) return std::nullopt;
  return Claim{*number, number_in(rank)};
}

// The claim of a resolver that waits for nobody; nullopt where its variables are wrong.
std::optional<Claim> claim_of(const ClusterResolver& resolver) {
  try {
    Claim claim;
    const ClusterSpec spec = resolver.cluster_spec();
    for (const auto& [job, tasks] : spec.tasks()) claim.size += std::ssize(tasks);
    return claim;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Claim> claim_of_dmlc() {
  const auto servers = number_in("DMLC_NUM_SERVER"), workers = number_in("DMLC_NUM_WORKER");
  if (!servers || !workers) return std::nullopt;
  return Claim{1 + *servers + *workers};
}

TasksByJob jobs_or_those_of_environment(TasksByJob jobs) {
  return jobs.empty() ? internal::jobs_of_environment() : std::move(jobs);
}

std::unique_ptr<ClusterResolver> make_slurm(TasksByJob jobs) {
  SlurmResolverOptions options{.jobs = std::move(jobs)};
  if (environment_text("COHORT_PORT_BASE")) {
    options.port_base = number_in("COHORT_PORT_BASE").value_or(0);
    internal::check_port(options.port_base, "COHORT_PORT_BASE");
  }
  return std::make_unique<SlurmResolver>(std::move(options));
}

struct ResolverKind {
  const char* name;
  std::vector<const char*> causes;         // all are set if this kind has started the process
  std::span<const char* const> variables;  // that it reads
  bool exchanges_addresses;                // ChosenResolver's
  std::optional<Claim> (*claim)();
  std::unique_ptr<ClusterResolver> (*make)(TasksByJob jobs);
};

template <class Resolver>
std::unique_ptr<ClusterResolver> make_launcher(TasksByJob jobs) {
  return std::make_unique<Resolver>(LauncherOptions{.jobs = std::move(jobs)});
}

constexpr const char* kTorchrunNames[] = {"RANK",
                                          "WORLD_SIZE",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "TORCHELASTIC_RUN_ID",
                                          "TORCHELASTIC_RESTART_COUNT",
                                          "TORCHELASTIC_USE_AGENT_STORE",
                                          "COHORT_OWN_HOST",
                                          "COHORT_TASKS"};
constexpr const char* kMpiNames[] = {"OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "MPI_LOCALNRANKS",
                                     "PMIX_RANK",
                                     "MASTER_ADDR",
                                     "MASTER_PORT",
                                     "COHORT_OWN_HOST",
                                     "COHORT_TASKS"};
constexpr const char* kSlurmNames[] = {
    "SLURM_PROCID",     "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",  "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS",     "SLURM_JOB_NODELIST",   "SLURM_TASKS_PER_NODE", "SLURMD_NODENAME",
    "SLURM_NODEID",     "SLURM_LOCALID",        "SLURM_GPUS_PER_TASK",  "CUDA_VISIBLE_DEVICES",
    "COHORT_PORT_BASE", "COHORT_TASKS"};
constexpr const char* kDmlcNames[] = {"DMLC_ROLE",       "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT",
                                      "DMLC_NUM_SERVER", "DMLC_NUM_WORKER",  "DMLC_SERVER_ID",
                                      "DMLC_WORKER_ID",  "COHORT_OWN_HOST"};
constexpr const char* kTfConfigNames[] = {"TF_CONFIG"};
constexpr const char* kSageMakerNames[] = {"SM_HOSTS", "SM_CURRENT_HOST"};

// In the order in which they count.
const std::vector<ResolverKind>& kinds() {
  const auto claim_of_torchrun = [] { return claim_in("RANK", "WORLD_SIZE"); };
  static const std::vector<ResolverKind> all = {
      {"tf_config",
       {"TF_CONFIG"},
       kTfConfigNames,
       false,
       [] { return claim_of(TfConfigResolver()); },
       [](TasksByJob) -> std::unique_ptr<ClusterResolver> {
         return std::make_unique<TfConfigResolver>();
       }},
      {"torchrun",
       {"TORCHELASTIC_RUN_ID"},
       kTorchrunNames,
       true,
       claim_of_torchrun,
       &make_launcher<TorchrunResolver>},
      {"mpi",
       {"OMPI_COMM_WORLD_SIZE"},
       kMpiNames,
       true,
       [] { return claim_in("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"); },
       &make_launcher<MpiResolver>},
      {"slurm",
       {"SLURM_STEP_NUM_TASKS"},
       kSlurmNames,
       false,
       [] { return claim_in("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"); },
       &make_slurm},
      {"mpi",
       {"PMI_RANK", "PMI_SIZE"},
       kMpiNames,
       true,
       [] { return claim_in("PMI_RANK", "PMI_SIZE"); },
       &make_launcher<MpiResolver>},
      {"torchrun",
       {"RANK", "WORLD_SIZE"},
       kTorchrunNames,
       true,
       claim_of_torchrun,
       &make_launcher<TorchrunResolver>},
      {"dmlc",
       {"DMLC_ROLE"},
       kDmlcNames,
       true,
       &claim_of_dmlc,
       [](TasksByJob) -> std::unique_ptr<ClusterResolver> {
         return std::make_unique<DmlcResolver>();
       }},
      {"sagemaker",
       {"SM_HOSTS"},
       kSageMakerNames,
       false,
       [] { return claim_of(SageMakerResolver()); },
       [](TasksByJob) -> std::unique_ptr<ClusterResolver> {
         return std::make_unique<SageMakerResolver>();
       }}};
  return all;
}

bool is_set(const char* name) { return environment_text(name).has_value(); }

bool is_present(const ResolverKind& kind) {
  return std::all_of(kind.causes.begin(), kind.causes.end(), &is_set);
}

// nullptr for "none".
const ResolverKind* kind_named(const std::string& name) {
  if (name == kNone) return nullptr;
  std::vector<std::string> names = {std::string(kNone)};
  for (const ResolverKind& kind : kinds()) {
    if (kind.name == name) return &kind;
    if (std::find(names.begin(), names.end(), kind.name) == names.end())
      names.emplace_back(kind.name);
  }
  std::string known;
  for (const std::string& one : names) known.append(known.empty() ? "" : ", ").append(one);
  internal::throw_error(ErrorCode::invalid_argument, "[cluster.environment] expected ", kForcing,
                        " to be one of ", known, ", got ", internal::quote(name),
                        did_you_mean(name, names));
}

bool differ(const Claim& one, const Claim& other) {
  return one.size != other.size || (one.rank && other.rank && *one.rank != *other.rank);
}

std::string text_of_claim(const Claim& claim) {
  const std::string tasks = std::to_string(claim.size) + (claim.size == 1 ? " task" : " tasks");
  return claim.rank ? "rank " + std::to_string(*claim.rank) + " of " + tasks : tasks;
}

// srun starts torchrun, and mpirun its daemons, once on each host.
bool may_start_launchers(const ResolverKind& kind) {
  const std::string text = environment_text("SLURM_STEP_TASKS_PER_NODE").value_or("");
  return std::string_view(kind.name) == "slurm" && text.starts_with("1(x") &&
         text.find(',') == std::string::npos;
}

// A sentence about the first other kind that would give another cluster. A single task, such as a
// shell that srun has started, is none: programs in it start clusters of their own. Neither is one
// task of Slurm's on each host that has started more.
std::string conflict_with(const ResolverKind& chosen, const std::string& cause) {
  const std::optional<Claim> own = chosen.claim();
  if (!own) return "";
  for (const ResolverKind& other : kinds()) {
    if (std::string_view(other.name) == chosen.name || !is_present(other)) continue;
    const std::optional<Claim> claim = other.claim();
    if (!claim || claim->size <= 1 || !differ(*own, *claim)) continue;
    if (claim->size < own->size && may_start_launchers(other)) continue;
    return "expected variables of one launcher, got those of " + std::string(chosen.name) + " (" +
           text_of_claim(*own) + ") and of " + other.name + " (" + text_of_claim(*claim) + "); " +
           chosen.name + " counts, because of " + cause + "; to choose, set " + kForcing + " to " +
           chosen.name + " or " + other.name;
  }
  return "";
}

// A batch script of Slurm's has the variables of one task, whatever the job has.
std::string missing_step() {
  const std::int64_t tasks = number_in("SLURM_NTASKS").value_or(1);
  if (!is_set("SLURM_JOB_ID") || tasks <= 1) return "";
  return "expected the tasks of the Slurm job to be started with srun, got a process outside of a "
         "step, which works alone, although SLURM_NTASKS is " +
         std::to_string(tasks) + "; start the program with srun, or set " + kForcing + "=none";
}

void warn_once(const std::string& text) {
  static Mutex mutex;
  static auto& warned = *new std::set<std::string>;
  const Lock lock(mutex);
  if (!text.empty() && warned.insert(text).second) log_warn("[cluster.environment] ", text);
}

}  // namespace

namespace cluster {

ChosenResolver choose_resolver() {
  const std::optional<std::string> forced = environment_text(kForcing);
  const ResolverKind* kind = nullptr;
  ChosenResolver chosen{.name = std::string(kNone)};
  if (!forced.value_or("").empty()) {
    kind = kind_named(*forced);
    chosen.cause = kForcing;
  } else {
    const auto found = std::find_if(kinds().begin(), kinds().end(), &is_present);
    if (found != kinds().end()) kind = &*found;
  }
  if (kind == nullptr) {
    if (chosen.cause.empty()) chosen.conflict = missing_step();
    return chosen;
  }
  chosen.name = kind->name;
  chosen.exchanges_addresses = kind->exchanges_addresses;
  for (const char* const name : kind->variables) {
    if (is_set(name)) chosen.variables.emplace_back(name);
  }
  if (!chosen.cause.empty()) return chosen;  // forced: its user knows of the others
  chosen.cause = kind->causes.front();
  chosen.conflict = conflict_with(*kind, chosen.cause);
  return chosen;
}

std::unique_ptr<ClusterResolver> make_resolver(const ChosenResolver& chosen, TasksByJob jobs) {
  const ResolverKind* const kind = kind_named(chosen.name);
  // An unset TF_CONFIG is an empty cluster, of which tf's resolver knows this process's GPUs.
  if (kind == nullptr && chosen.cause.empty()) return std::make_unique<TfConfigResolver>();
  if (kind == nullptr) return std::make_unique<SimpleResolver>(ClusterSpec());
  return kind->make(jobs_or_those_of_environment(std::move(jobs)));
}

}  // namespace cluster

std::unique_ptr<ClusterResolver> ClusterResolver::from_environment(const TasksByJob& jobs) {
  const cluster::ChosenResolver chosen = cluster::choose_resolver();
  warn_once(chosen.conflict);
  return cluster::make_resolver(chosen, jobs);
}

}  // namespace cohort

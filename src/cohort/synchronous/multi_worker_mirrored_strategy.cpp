// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/launchers.h"
#include "cohort/cluster/resolver_answers.h"
#include "cohort/cluster/validation.h"
#include "cohort/cluster/worker_roles.h"
#include "cohort/collective/mpi_group.h"
#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/input/input_host.h"
#include "cohort/rpc/connection.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/workers/handover.h"
#include "cohort/synchronous/workers/worker_gradients.h"

namespace cohort {
namespace {

constexpr std::string_view kName = "multi_worker_mirrored";

std::shared_ptr<collective::Group> checked(std::shared_ptr<collective::Group> group) {
  COHORT_CHECK(group != nullptr, ErrorCode::invalid_argument, "[strategy.", kName,
               "] expected a group of workers, got none");
  return group;
}

Duration wait_of(const MultiWorkerMirroredOptions& options) {
  options.communication.check();
  if (options.communication.implementation == CommunicationImplementation::nccl)
    log_warn(
        "[strategy.", kName,
        "] expected the communication implementation AUTO or RING, got NCCL, which Cohort does "
        "not use; workers exchange values over the CPU, with the same results");
  return options.communication.timeout.value_or(options.timeout);
}

void use_options(const MultiWorkerMirroredOptions& options, internal::MirroredHome& home) {
  const bool has_shards = options.shard_optimizer_state;
  COHORT_CHECK(!has_shards || !options.sends_bfloat16_gradients, ErrorCode::unimplemented,
               "[strategy.", kName,
               "] expected shard_optimizer_state or sends_bfloat16_gradients, got both; set one of "
               "them");
  home.gradients().early().use(
      {.is_wanted = options.overlaps_communication && !has_shards && home.replicas() == 1,
       .bytes_per_pack = options.communication.bytes_per_pack,
       .sends_bfloat16 = options.sends_bfloat16_gradients});
  if (has_shards) home.shard_updates();
}

// On MPI, TF_CONFIG is compared with it if it is there; MPI knows the rest by itself.
std::unique_ptr<ClusterResolver> default_resolver(GroupBackend backend) {
  if (backend == GroupBackend::mpi) return std::make_unique<TfConfigResolver>();
  return ClusterResolver::from_environment();
}

// The present answers of the resolver. Its cluster is one in which workers train together.
std::unique_ptr<const SimpleResolver> snapshot_of(const ClusterResolver& resolver,
                                                  GroupBackend backend) {
  // The resolver would end MPI again, which it needs for a moment.
  if (backend == GroupBackend::mpi && dynamic_cast<const MpiResolver*>(&resolver) != nullptr)
    collective::begin_mpi();
  resolver.validate();
  auto answers = cluster::answers_of(resolver);
  validate_multi_worker_cluster(answers->cluster_spec(), answers->task_type(), answers->task_id());
  return answers;
}

// The settings that must be equal on all workers. A process that has something else must not come
// into a group that trains: the first step would fail on all.
std::string text_of(const MultiWorkerMirroredOptions& options, std::size_t replicas) {
  std::string text = std::to_string(replicas) + (replicas == 1 ? " replica" : " replicas");
  if (options.communication.bytes_per_pack != 0)
    text += ", bytes_per_pack=" + std::to_string(options.communication.bytes_per_pack);
  if (options.sends_bfloat16_gradients) text += ", sends_bfloat16_gradients";
  if (options.shard_optimizer_state) text += ", shard_optimizer_state";
  if (options.overlaps_communication) text += ", overlaps_communication";
  if (options.allow_minority) text += ", allow_minority";
  return text;
}

// Used by one thread at a time.
class GroupOfMpi final : public internal::WorkerGroups {
 public:
  explicit GroupOfMpi(collective::MpiTasks tasks) : tasks_(std::move(tasks)) {}
  collective::Membership form(Deadline deadline, Duration /*return_wait*/) override {
    collective::Membership membership{.group = collective::mpi_group(tasks_, deadline),
                                      .number = 1};
    for (int rank = 0; rank < membership.group->size(); ++rank) membership.tasks.push_back(rank);
    membership.is_new.assign(membership.tasks.size(), true);
    return membership;
  }
  void check_forms_again() const override {
    throw Error(ErrorCode::unimplemented,
                "[strategy.rebuild] expected workers that can go on after a loss, got those of "
                "GroupBackend::mpi, whose job ends with each of its processes; start the job again "
                "from its last checkpoint, or use GroupBackend::automatic",
                ErrorCause::must_restart);
  }

 private:
  const collective::MpiTasks tasks_;
};

// nullptr for a process that works alone: without a cluster, and an evaluator.
std::shared_ptr<internal::WorkerGroups> groups_of(const SimpleResolver& resolver,
                                                  const MultiWorkerMirroredOptions& of_strategy,
                                                  std::size_t replicas) {
  const GroupBackend backend = of_strategy.backend;
  const ClusterSpec spec = resolver.cluster_spec();
  const std::optional<TaskId> self = resolver.task();
  if (backend == GroupBackend::mpi && !spec)
    return std::make_shared<GroupOfMpi>(collective::MpiTasks());
  if (!spec || !self || self->job == "evaluator") return nullptr;
  collective::ProcessGroupOptions options{
      .tasks = {},
      .self = static_cast<int>(cluster::id_in_cluster(spec, self->job, self->index)),
      .backend = backend,
      .job = rpc::job_id_of(spec).text,
      .options = text_of(of_strategy, replicas),
      .allow_minority = of_strategy.allow_minority};
  for (const char* const job : {"chief", "worker"}) {  // in the order of id_in_cluster()
    if (!spec.tasks().contains(job)) continue;
    for (const std::int64_t index : spec.task_indices(job)) {
      options.tasks.push_back(
          {.name = TaskId{job, index}.to_string(), .address = spec.task_address(job, index)});
    }
  }
  if (backend != GroupBackend::mpi)
    return std::make_shared<collective::ProcessGroups>(std::move(options));
  collective::MpiTasks tasks{.self = options.self};
  for (collective::WorkerTask& task : options.tasks) tasks.names.push_back(std::move(task.name));
  return std::make_shared<GroupOfMpi>(std::move(tasks));
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(std::shared_ptr<collective::Group> group,
                                                         const MultiWorkerMirroredOptions& options)
    : SynchronousStrategy({.strategy = std::string(kName),
                           .group = checked(std::move(group)),
                           .timeout = wait_of(options)},
                          options.devices, internal::VariableKind::mirrored) {
  use_options(options, *home());
}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const MultiWorkerMirroredOptions& options)
    : MultiWorkerMirroredStrategy(*default_resolver(options.backend), options) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                                         const MultiWorkerMirroredOptions& options)
    : MultiWorkerMirroredStrategy(nullptr, snapshot_of(resolver, options.backend), options) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    std::shared_ptr<internal::WorkerGroups> groups, std::unique_ptr<const ClusterResolver> resolver,
    const MultiWorkerMirroredOptions& options)
    : SynchronousStrategy({.strategy = std::string(kName), .timeout = wait_of(options)},
                          options.devices, internal::VariableKind::mirrored),
      resolver_(std::move(resolver)),
      groups_(std::move(groups)) {
  use_options(options, *home());
  if (resolver_ != nullptr)
    groups_ =
        groups_of(static_cast<const SimpleResolver&>(*resolver_), options, home()->replicas());
  if (groups_ == nullptr) return;
  home()->workers()->ask_groups(groups_);
  join_group({timeout(), options.return_timeout}, /*begins=*/true);
}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

void MultiWorkerMirroredStrategy::join_group(const Waits& waits, bool begins) {
  const collective::Membership membership =
      groups_->form(Deadline::after(waits.forming), waits.returning);
  use_group(membership.group, /*is_first=*/!membership.survivor);
  log_info("[strategy] group ", membership.number, ": ", membership.group->member_name(worker()),
           " is worker ", worker(), " of ", num_workers());
  if (!membership.survivor) {
    // A worker that ended now would break connections that others are still opening.
    membership.group->barrier(Deadline::after(timeout()));
    return;
  }
  if (!begins && membership.is_new.at(static_cast<std::size_t>(worker())))
    log_warn("[strategy.rebuild] ", membership.group->member_name(worker()),
             " was not in the last group of ", membership.group->member_name(*membership.survivor),
             ": what it has trained alone since then is replaced by that worker's values");
  try {
    internal::hand_over(
        *home(), *membership.group,
        {.is_new = membership.is_new.at(static_cast<std::size_t>(worker())), .begins = begins},
        Deadline::after(timeout()));
  } catch (Error& error) {
    // Values that only lost workers had do not come back by another call.
    if (error.code() != ErrorCode::data_loss) throw;
    throw std::move(error).because(ErrorCause::must_restart);
  }
}

void MultiWorkerMirroredStrategy::rebuild() { rebuild(timeout()); }

void MultiWorkerMirroredStrategy::rebuild(Duration wait) {
  internal::check_not_mixing(this, name(), "strategy.rebuild");
  COHORT_CHECK(!home()->is_in_replica(), ErrorCode::failed_precondition,
               "[strategy.rebuild] expected a call outside of run(), got one in a replica of '",
               name(), "'; let the error leave run(), and call it then");
  if (groups_ == nullptr) {
    COHORT_CHECK(host()->group == nullptr, ErrorCode::unimplemented,
                 "[strategy.rebuild] expected workers that are processes of a cluster, got a group "
                 "that the program has made, which cannot take in others; make the strategy from a "
                 "ClusterResolver, or make a new group and a new strategy");
    return;  // it works alone
  }
  groups_->check_forms_again();
  const collective::WorkerCalls::Running alone(*host()->worker_calls, "rebuild");
  home()->run_gate().close();
  home()->optimizer_gradients().forget();  // a run that failed may have left some
  end_group();
  try {
    join_group({.forming = wait}, /*begins=*/false);
  } catch (...) {
    end_group();
    const Error error = current_error();
    const bool may_succeed = error.cause() != ErrorCause::must_restart;
    throw Error(error).during(may_succeed ? "forming a new group of workers; call rebuild() again"
                                          : "forming a new group of workers");
  }
  home()->run_gate().open();
}

}  // namespace cohort

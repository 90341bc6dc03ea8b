// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/process_groups.h"

#include <c10/util/ScopeExit.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "cohort/collective/formation/formation.h"
#include "cohort/collective/formation/former.h"
#include "cohort/collective/formation/lack.h"
#include "cohort/collective/formation/link_table.h"
#include "cohort/collective/formation/listener.h"
#include "cohort/collective/formation/on_backend.h"
#include "cohort/collective/formation/process_links.h"
#include "cohort/collective/links.h"
#include "cohort/collective/member_status.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/random.h"
#include "cohort/core/task_progress.h"
#include "cohort/net/host_port.h"
#include "cohort/net/socket.h"

namespace cohort::collective {
namespace {

using formation::Identity;
using formation::Member;

// Each question carries the list of tasks, for messages.
constexpr std::size_t kTasksBytesMax = 2048;

ProcessGroupOptions checked(ProcessGroupOptions options) {
  const auto count = static_cast<int>(options.tasks.size());
  COHORT_CHECK(options.self >= 0 && options.self < count, ErrorCode::invalid_argument,
               "[collective.form] expected a task index of 0 to ", count - 1, ", got ",
               options.self);
  std::set<std::string> addresses;
  for (const WorkerTask& task : options.tasks) {
    net::parse_given_address(task.address);
    COHORT_CHECK(addresses.insert(task.address).second, ErrorCode::invalid_argument,
                 "[collective.form] expected an address for each worker, got ", task.address,
                 " twice");
  }
  return options;
}

Identity identity_of(const ProcessGroupOptions& options) {
  std::uint64_t hash = 0;
  for (const WorkerTask& task : options.tasks)
    hash = mix_seed(mix_seed(hash, task.name), task.address);
  std::string tasks;
  for (const WorkerTask& task : options.tasks) {
    const std::string line = task.name + " " + task.address + "\n";
    if (tasks.size() + line.size() > kTasksBytesMax) break;
    tasks += line;
  }
  return {.job = options.job,
          .backend = options.backend,
          .options = options.options,
          .tasks_hash = hash,
          .tasks = std::move(tasks),
          .torch_version = TORCH_VERSION,
          .self = {options.self, draw_number()}};
}

std::vector<FileDescriptor> listening_at(std::string address) {
  return net::listen_on_all(address);
}

std::vector<std::string> names_of(const ProcessGroupOptions& options) {
  std::vector<std::string> names;
  for (const WorkerTask& task : options.tasks) names.push_back(task.name);
  return names;
}

}  // namespace

// As ProcessGroups.
class ProcessGroups::State {
 public:
  explicit State(ProcessGroupOptions options)
      : options_(checked(std::move(options))),
        self_(identity_of(options_)),
        rules_{.allow_minority = options_.allow_minority,
               .share_memory = options_.backend != GroupBackend::tcp,
               .has_ended = formation::has_ended},
        formation_(self_, names_of(options_), rules_),
        listening_(listening_at(own().address)),
        addresses_(net::bound_addresses(listening_)),
        listener_(
            std::move(listening_),
            {.strangers_max = 16 * options_.tasks.size() + 64,
             .peers_max = 8 * options_.tasks.size() + 64,
             // Lists of members, and the name of the job.
             .question_bytes_max = 256 * options_.tasks.size() + 65'536,
             .answer = [this](
                           const auto& request, std::uint64_t connection,
                           FileDescriptor& socket) { return answer(request, connection, socket); },
             .closed = [this](std::uint64_t connection) { formation_.closed(connection); }}) {}
  ~State() { table_->end(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Membership form(Deadline deadline, Duration return_wait) {
    COHORT_CHECK(!is_forming_.exchange(true), ErrorCode::failed_precondition,
                 "[collective.form] expected one call at a time, got a second one");
    const bool is_given_up = hears_that_it_was_given_up();
    // From here on the process tells others that it is in no group.
    const std::vector<Member> missed = table_->missed();
    formation_.look();
    table_->end();
    const auto stop = c10::make_scope_exit([this] {
      formation_.stop();
      is_forming_ = false;
    });
    const formation::PastGroup last = formation_.last();
    formation::Former former(options_.tasks, self_, formation_,
                             {.last = last,
                              .number_max = std::max(last.number, heard_),
                              .missed = missed,
                              .pending = pending_,
                              .proposed_max = proposed_,
                              .host = formation::own_host(),
                              .process = ::getpid(),
                              .addresses = addresses_,
                              .is_given_up = is_given_up},
                             deadline, return_wait, silent_, [this] { listener_.settle(); });
    const auto remember = c10::make_scope_exit([&] {
      heard_ = std::max(heard_, former.join().number_max);
      proposed_ = former.join().proposed_max;
      pending_ = former.join().pending;
      silent_ = former.silent();
    });
    return enter(former.run(), last, deadline);
  }

  bool have_others_ended(Deadline deadline) {
    formation::Former former(options_.tasks, self_, formation_, {.last = formation_.last()},
                             deadline, Duration::zero(), silent_);
    return former.have_others_ended(rules_);
  }

  std::uint64_t last_number() const { return formation_.last().number; }

  bool is_given_up() {
    if (hears_that_it_was_given_up()) return true;
    listener_.settle();
    return formation_.left_out_of() > formation_.last().number;
  }

 private:
  // By members of the last group.
  bool hears_that_it_was_given_up() {
    const std::shared_ptr<Group> group = group_.lock();
    if (auto* const ended = dynamic_cast<EndedGroup*>(group.get())) ended->look_for_end();
    return table_->is_given_up();
  }
  const WorkerTask& own() const { return options_.tasks[static_cast<std::size_t>(options_.self)]; }

  std::optional<formation::Reply> answer(const formation::Request& request,
                                         std::uint64_t connection, FileDescriptor& socket) {
    if (request.kind == formation::RequestKind::status)
      return formation::Reply{.kind = formation::ReplyKind::status,
                              .incarnation = self_.self.incarnation,
                              .status = status_for(request.from.job)};
    std::optional<formation::Reply> reply = formation_.answer(request, connection);
    if (reply || request.kind != formation::RequestKind::link) return reply;
    return table_->offer(request, socket);
  }

  // For somebody who says that he belongs to this job.
  MemberStatus status_for(const std::string& job) const {
    constexpr std::size_t kValuesMax = 100;
    const formation::PastGroup last = formation_.last();
    MemberStatus status{.task = own().name,
                        .incarnation = self_.self.incarnation,
                        .uptime = Clock::system().now() - start_,
                        .group = last.number,
                        .workers = static_cast<int>(last.members.size()),
                        .is_forming = is_forming_,
                        .progress = ProgressMeter::of_process().progress()};
    std::map<std::string, double>& values = status.progress.values;
    while (values.size() > kValuesMax) values.erase(std::prev(values.end()));
    if (job != options_.job) {
      status.task.clear();
      values.clear();
    }
    return status;
  }

  Membership enter(formation::Proposal group, const formation::PastGroup& last, Deadline deadline) {
    Membership membership{.number = group.number};
    formation::PastGroup now = formation::past_group_of(group);
    bool lacks_values = false;
    for (const formation::ProposedMember& member : group.members) {
      if (!member.is_new && !membership.survivor)
        membership.survivor = static_cast<int>(membership.tasks.size());
      membership.tasks.push_back(member.who.task);
      membership.is_new.push_back(member.is_new);
      if (member.who == self_.self) lacks_values = member.is_new && group.last != 0;
    }
    warn_of_left_out(last, now);
    log_debug("[collective.form] group ", group.number, " of ", group.members.size(), " members");
    table_->begin(group.number);
    formation_.enter(group.number);
    // A new member gets the values of the others in the group, by its caller. If it cannot even
    // connect, it still has older ones, which must not replace theirs: then it comes as new again,
    // and does not go on alone.
    heard_ = std::max(heard_, group.last);
    silent_.clear();
    if (!lacks_values) formation_.keep(now);
    membership.group = formation::on_backend(
        std::make_shared<formation::ProcessLinks>(options_.tasks, self_, std::move(group), table_),
        options_.backend, deadline);
    group_ = membership.group;
    if (lacks_values) formation_.keep(std::move(now));
    return membership;
  }

  void warn_of_left_out(const formation::PastGroup& last, const formation::PastGroup& now) const {
    std::vector<int> left_out;
    for (const Member& member : last.members) {
      const bool is_in = std::any_of(now.members.begin(), now.members.end(),
                                     [&](const Member& one) { return one.task == member.task; });
      if (!is_in) left_out.push_back(member.task);
    }
    if (left_out.empty()) return;
    log_warn("[collective.form] group ", now.number, " goes on without ",
             formation::names_of(options_.tasks, left_out),
             "; it can join when the others form the next group");
  }

  const ProcessGroupOptions options_;
  const Identity self_;
  const TimePoint start_ = Clock::system().now();
  const formation::RosterRules rules_;
  // Groups may be used after this object.
  const std::shared_ptr<formation::LinkTable> table_ = std::make_shared<formation::LinkTable>();
  formation::Formation formation_;
  std::atomic<bool> is_forming_ = false;
  // The largest numbers of groups that it has heard of, and that were proposed. Used only by
  // form().
  std::uint64_t heard_ = 0;
  std::uint64_t proposed_ = 0;
  formation::PastGroup pending_;           // as in Join
  std::set<int> silent_;                   // AbsentTask::was_silent since the last group
  std::weak_ptr<Group> group_;             // the last one; not used by two threads
  std::vector<FileDescriptor> listening_;  // until the listener has them
  const std::vector<std::uint64_t> addresses_;
  formation::Listener listener_;
};

ProcessGroups::ProcessGroups(ProcessGroupOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}

ProcessGroups::~ProcessGroups() = default;

Membership ProcessGroups::form(Deadline deadline, Duration return_wait) {
  return state_->form(deadline, return_wait);
}

std::uint64_t ProcessGroups::last_number() const { return state_->last_number(); }

bool ProcessGroups::is_given_up() { return state_->is_given_up(); }

bool ProcessGroups::have_others_ended(Deadline deadline) {
  return state_->have_others_ended(deadline);
}

}  // namespace cohort::collective

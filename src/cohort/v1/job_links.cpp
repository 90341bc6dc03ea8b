// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/job_links.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "cohort/cluster/validation.h"
#include "cohort/core/random.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/requester.h"

namespace cohort::detail::v1 {
namespace {

// How long a call tries a server at which nobody listens, before its caller decides what to do.
constexpr auto kConnectTimeout = std::chrono::seconds(1);
constexpr auto kAttemptOfHandshake = std::chrono::seconds(2);
constexpr auto kPauseOfServers = std::chrono::milliseconds(50);

ClusterOptions checked_options(ClusterOptions options) {
  COHORT_CHECK(options.timeout > Duration::zero() && options.data_timeout > Duration::zero(),
               ErrorCode::invalid_argument,
               "[v1.construct] expected ClusterOptions::timeout and data_timeout above 0 s, got ",
               std::chrono::duration<double>(options.timeout).count(), " s and ",
               std::chrono::duration<double>(options.data_timeout).count(), " s");
  return options;
}

}  // namespace

JobLinks::JobLinks(const ClusterSpec& spec, const std::string& task, ClusterOptions options,
                   std::function<void()> on_closed)
    : options_(checked_options(std::move(options))),
      self_(rpc::identity_of_process(task, rpc::job_id_of(spec, options_.job_id).text,
                                     draw_number())),
      on_closed_(std::move(on_closed)) {
  for (std::int64_t i = 0; i < spec.num_tasks("ps"); ++i)
    members_.push_back(
        {static_cast<rpc::MemberId>(i), "ps:" + std::to_string(i), spec.task_address("ps", i)});
  servers_ = std::make_shared<parameter_server::ServerLinks>(parameter_server::ServerLinks::Options{
      .self = task,
      .connect =
          [this](const rpc::Member& server, Duration, const auto&) {
            return connect(server, Deadline::after(kConnectTimeout), /*begins=*/false);
          },
      .data_timeout = options_.data_timeout});
}

JobLinks::~JobLinks() { close(); }

void JobLinks::close() noexcept {
  is_closed_ = true;
  servers_->close();
}

rpc::Connection JobLinks::connect(const rpc::Member& server, Deadline deadline, bool begins) const {
  rpc::Identity caller = self_;
  if (begins) caller.incarnation = job_;
  return rpc::connect_task({.address = server.address,
                            .task = server.task,
                            .caller = caller,
                            .coordinator_incarnation = job_,
                            .backend = options_.backend,
                            .data_timeout = options_.data_timeout,
                            .start_order = begins ? rpc::start_order_now() : 0,
                            .is_shared = begins,
                            .payload_checksums = options_.payload_checksums,
                            .deadline = deadline,
                            .on_closed = [tell = on_closed_](const Error&) { tell(); },
                            .should_stop = [this] { return is_closed_.load(); }});
}

// Asks those that have not answered once more, for the message of an error.
std::string JobLinks::silent_ones() const {
  std::string names;
  for (const rpc::Member& server : members_) {
    try {
      rpc::control_client(server.address, server.task)
          ->health(Deadline::after(rpc::kRefusalTimeout));
    } catch (const Error&) {
      names += (names.empty() ? "" : ", ") + server.task + " (" + server.address + ")";
    }
  }
  return names;
}

std::vector<std::uint64_t> JobLinks::jobs(Deadline deadline) const {
  std::vector<std::uint64_t> jobs;
  for (const rpc::Member& server : members_) {
    const auto client = rpc::control_client(server.address, server.task);
    const rpc::HandshakeRequest request{.caller = self_, .expected_task = server.task};
    while (jobs.size() <= server.id) {
      try {
        const Deadline attempt = Deadline::after(kAttemptOfHandshake);
        jobs.push_back(
            client->handshake(request, Deadline(std::min(attempt.time(), deadline.time())))
                .shared_job);
      } catch (const Error& error) {
        if (!rpc::may_come_up(error)) throw;
        if (deadline.has_expired() || is_closed_) {
          const std::string silent = silent_ones();
          throw Error(ErrorCode::unavailable,
                      "[v1.connect] expected an answer of all parameter servers, got none from " +
                          (silent.empty() ? server.task : silent) +
                          "; start these tasks (`cohort server`), or correct their addresses in "
                          "TF_CONFIG",
                      ErrorCause::peer_lost);
        }
        std::this_thread::sleep_for(std::min<Duration>(kPauseOfServers, deadline.remaining()));
      }
    }
  }
  return jobs;
}

std::uint64_t JobLinks::common(const std::vector<std::uint64_t>& jobs) {
  const bool are_equal =
      std::ranges::all_of(jobs, [&](std::uint64_t job) { return job == jobs[0]; });
  return are_equal ? jobs[0] : 0;
}

// The connections of an earlier job are replaced, and their starts of the servers forgotten.
void JobLinks::connect_all(std::uint64_t job, Deadline deadline, bool begins) {
  job_ = job;
  servers_->set({.epoch = ++epoch_, .servers = members_});
  for (const rpc::Member& server : members_) {
    rpc::Connection made = connect(server, deadline, begins);
    COHORT_CHECK(made.shared_job == job, ErrorCode::aborted, "[v1.connect] expected ", server.task,
                 " to serve this job, got another one; give no other program these servers");
    servers_->put(server.id, std::move(made));
  }
}

void JobLinks::begin(Deadline deadline) {
  jobs(deadline);  // so that none begins while another one is missing
  connect_all(draw_number(), deadline, /*begins=*/true);
}

void JobLinks::join(std::uint64_t job, Deadline deadline) {
  connect_all(job, deadline, /*begins=*/false);
}

rpc::Frame JobLinks::ask_first(rpc::Frame request, const std::string& what) const {
  return servers_->get(0).data->call(std::move(request), Deadline::after(options_.data_timeout),
                                     what);
}

void JobLinks::announce(rpc::AnnounceRequest request) const {
  rpc::message_of<rpc::DoneReply>(
      ask_first(rpc::to_frame(std::move(request)), "announcing variables"));
}

rpc::FindReply JobLinks::find(std::vector<std::string> names) const {
  return rpc::message_of<rpc::FindReply>(
      ask_first(rpc::to_frame(rpc::FindRequest{std::move(names)}), "looking up variables"));
}

void JobLinks::create(rpc::MemberId server, const std::vector<rpc::VariableSpec>& variables) const {
  servers_->get(server).control->create_variables(variables, Deadline::after(options_.timeout));
}

bool is_job_lost(const Error& error) { return error.cause() == ErrorCause::handle_lost; }

// A request ends as cancelled if another thread has replaced its connection by one of another job.
bool is_connection_lost(const Error& error) {
  if (error.code() == ErrorCode::cancelled) return true;
  return error.cause() == ErrorCause::peer_lost && error.code() != ErrorCode::data_loss;
}

}  // namespace cohort::detail::v1

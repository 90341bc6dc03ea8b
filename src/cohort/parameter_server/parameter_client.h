// SPDX-License-Identifier: Apache-2.0
// Reads and updates variables on parameter servers, for a coordinator and for the closures of a
// worker: one request a server, all sent together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/rpc/membership.h"
#include "cohort/rpc/messages.h"
#include "cohort/variable/eager_step.h"

namespace cohort::parameter_server {

// One read from one server.
struct Pull {
  rpc::MemberId server = 0;
  rpc::PullRequest request;
  std::vector<std::size_t> positions;    // of its values among those of the call
  std::vector<std::uint64_t> variables;  // whose values these are
};
// Collects reads into one pull a server. Thread-compatible.
class COHORT_API PullBatch {
 public:
  // `version`: that of the slices' placement.
  explicit PullBatch(std::uint64_t version) : version_(version) {}
  // Reads these rows of the slice, int64 [n], counted from its first one. Reads of whole slices
  // come after those of rows.
  void add_rows(const rpc::Slice& slice, at::Tensor row_ids, std::size_t position);
  void add(const rpc::Slice& slice, std::size_t position);
  // The same with the version: its value does not come if that is `known` (0: none is). A batch has
  // such reads or others.
  void add_newer(const rpc::Slice& slice, std::size_t position, std::uint64_t known);
  // In the order in which the servers first occur.
  std::vector<Pull> take() { return std::move(pulls_); }

 private:
  Pull& entry(const rpc::Slice& slice, std::size_t position);
  const std::uint64_t version_;
  std::vector<Pull> pulls_;
};

struct COHORT_API Push {
  rpc::MemberId server = 0;
  rpc::PushRequest request;
  std::vector<std::uint64_t> variables;  // of the effects
  std::uint64_t bytes() const;           // of its tensors
};
// Collects effects into one push a server. A server applies them in the order of add(), all or
// none. Thread-compatible.
class COHORT_API PushBatch {
 public:
  // Sets the variable of the effect. `slices`: all of that variable; `versions`: theirs, for an
  // average.
  void add(std::span<const rpc::Slice> slices, rpc::Effect effect,
           std::span<const std::uint64_t> versions = {});
  // Returns all pushes and begins again. `version`: that of the slices' placement.
  std::vector<Push> take(std::uint64_t version);

 private:
  std::vector<Push> pushes_;
};

// Errors have the server as origin. A server whose answer is late loses its connection, since the
// answer may never arrive over it. Thread-safe.
class COHORT_API ParameterClient {
 public:
  // Describes a request for errors: "pull of variables 'w', 'b'".
  using Describe =
      std::function<std::string(std::span<const std::uint64_t> variables, bool is_push)>;
  struct Exchange {
    std::vector<Push> pushes = {};
    std::span<const Pull> pulls = {};
    // Get what is pulled, at Pull::positions; `versions` where a pull wants them. A value of which
    // the pull knows the version stays as it is.
    std::span<at::Tensor> values = {};
    std::span<std::uint64_t> versions = {};
    std::uint64_t snapshot = 0;  // of all pulls, as in rpc::PullRequest
  };

  explicit ParameterClient(std::shared_ptr<ServerLinks> links);

  // Connects to all servers, sends the pushes and the pulls, and waits for all answers. A server
  // gets its push and its pull as one request; what is pulled includes what is pushed. Throws the
  // first error after all answers have come or are late, and were added to `traffic`.
  void exchange(Exchange exchange, VariableTraffic& traffic, const Describe& describe) const;
  // The states of ranges of variables, each on its server, in this order.
  struct Range {
    rpc::MemberId server = 0;
    rpc::StateRange range;
    std::uint64_t variable = 0;  // whose rows these are
  };
  struct Export {
    std::uint64_t placement = 0;
    bool has_slots = true;
    std::uint64_t cut = 0;  // of this moment, which the servers keep; 0: of now
  };
  std::vector<rpc::StateOfRange> export_state(std::span<const Range> ranges, const Export& how,
                                              const Describe& describe) const;
  // All of these servers keep values of this moment; see rpc::SnapshotRequest.
  void take_snapshot(std::vector<std::pair<rpc::MemberId, rpc::SnapshotRequest>> requests) const;
  // Begins or ends a cut on each of these servers.
  void take_cut(std::span<const rpc::MemberId> servers, const rpc::CutRequest& request) const;
  void import_state(rpc::MemberId server, rpc::ImportRequest request, std::uint64_t variable,
                    const Describe& describe) const;
  // Removes rows of the table `variable`.
  void erase_rows(std::vector<std::pair<rpc::MemberId, rpc::EraseRequest>> requests,
                  std::uint64_t variable, const Describe& describe) const;
  // Sends a push and returns. `on_end` gets the error; or, with nullopt, whether it was applied.
  using OnEnd = std::function<void(const std::optional<Error>& error, bool was_applied)>;
  void push_later(Push push, OnEnd on_end) const;
  // Gives up the servers to which a push has waited for data_timeout, and ends everything that
  // waits for them. Returns when the oldest of the others will have waited for it.
  Deadline give_up_late(TimePoint now) const;

 private:
  // The pushes of push_later() that have no answer yet. Answers keep it alive after the client.
  class OpenPushes;
  struct Asked {
    rpc::MemberId server = 0;
    std::string_view what;  // "pull"
    rpc::Frame frame;
    bool has_small_answer = false;  // as that of Requester::Request
  };
  // Connects to all servers, sends the requests, and waits for all answers. `take(i, frame)` may
  // throw. Throws the first error, to which `describe(i)` adds what was asked, after all answers
  // have come or are late.
  void ask(std::vector<Asked> requests, const std::function<void(std::size_t, rpc::Frame)>& take,
           const std::function<std::string(std::size_t)>& describe) const;
  void take(const Pull& pull, rpc::PullReply reply, const Exchange& into,
            VariableTraffic& traffic) const;

  const std::shared_ptr<ServerLinks> links_;
  const std::shared_ptr<OpenPushes> open_;
};

}  // namespace cohort::parameter_server

// SPDX-License-Identifier: Apache-2.0
// Reads and updates the variables of a job on its servers. Its pushes have names, so that each is
// applied once, also if it is sent again because its answer was lost.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/core/thread_value.h"
#include "cohort/parameter_server/remote_home.h"
#include "cohort/synchronous/central_values.h"
#include "cohort/variable/variable_home.h"

namespace cohort::detail::v1 {

// Thread-safe.
class COHORT_API ServerHome final : public RemoteHome {
 public:
  using RemoteHome::RemoteUpdate;

  // `origin`, `incarnation`: those of rpc::PushId for this task and this start of it.
  ServerHome(std::shared_ptr<parameter_server::ServerLinks> links, std::uint64_t origin,
             std::uint64_t incarnation)
      : RemoteHome(std::move(links)), origin_(origin), incarnation_(incarnation) {}

  // While it exists, pushes of this thread are one push, however often they are sent. Used only
  // from the thread that made it.
  class COHORT_API OnePush {
   public:
    explicit OnePush(const ServerHome& home);
    ~OnePush();
    OnePush(const OnePush&) = delete;
    OnePush& operator=(const OnePush&) = delete;

   private:
    const ServerHome& home_;
    const std::uint64_t number_;
    const internal::ScopedValue<std::uint64_t> current_;
  };

  // Made within a OnePush.
  void send(std::span<const RemoteUpdate> updates, const std::string& what) const {
    push(updates, what);
  }
  // Made within a OnePush if there are updates, which are then of these variables: one request to
  // each server, which reads after it has updated. The first `unread` variables are not read, and
  // have no value. `known`: of each variable, the version that the caller has, whose value does
  // not come; 0: none.
  std::vector<internal::CentralValue> send_and_read(std::vector<RemoteUpdate> updates,
                                                    std::span<const Variable> variables,
                                                    std::size_t unread,
                                                    std::span<const std::uint64_t> known,
                                                    const std::string& what) const;

 private:
  void exchange(parameter_server::ParameterClient::Exchange exchange,
                std::span<const Variable> variables, const std::string& what) const override;
  std::uint64_t begin_push() const;
  void end_push(std::uint64_t number) const;

  const std::uint64_t origin_;
  const std::uint64_t incarnation_;
  mutable Mutex mutex_;
  mutable std::uint64_t last_push_ COHORT_GUARDED_BY(mutex_) = 0;
  mutable std::set<std::uint64_t> open_pushes_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::detail::v1

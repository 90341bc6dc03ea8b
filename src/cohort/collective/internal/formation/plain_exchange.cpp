// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/internal/formation/plain_exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cohort/collective/internal/formation/socket.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {
namespace {

struct Transfer {
  Bytes in = Bytes(8);
  std::size_t num_in = 0;
  bool has_size = false;
  std::size_t num_out = 0;
};

}  // namespace

std::vector<Bytes> PlainExchange::exchange(Bytes mine, std::string_view what, Deadline deadline) {
  if (sockets_.empty() && size() > 1) sockets_ = links_->open(path_, 1, deadline);
  Bytes out(8 + mine.size());
  const std::uint64_t bytes = mine.size();
  std::memcpy(out.data(), &bytes, 8);
  if (!mine.empty()) std::memcpy(out.data() + 8, mine.data(), mine.size());
  std::vector<Transfer> transfers(static_cast<std::size_t>(size()));
  const auto fail = [&](int rank, ErrorCode code, std::string_view why) {
    links_->missed(rank, why);
    sockets_.clear();
    cohort::internal::throw_error(code, "[collective.exchange] ", what, ": ", member_name(rank),
                                  ": ", why);
  };
  while (true) {
    std::vector<pollfd> entries;
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      const Transfer& transfer = transfers[static_cast<std::size_t>(rank)];
      const bool has_all_in = transfer.has_size && transfer.num_in == transfer.in.size();
      const bool has_all_out = transfer.num_out == out.size();
      if (rank == this->rank() || (has_all_in && has_all_out)) continue;
      const int events = (has_all_in ? 0 : POLLIN) | (has_all_out ? 0 : POLLOUT);
      entries.push_back(
          {sockets_[static_cast<std::size_t>(rank)].get(), static_cast<short>(events), 0});
      ranks.push_back(rank);
    }
    if (entries.empty()) break;
    ::poll(entries.data(), entries.size(), poll_milliseconds(deadline));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const int rank = ranks[i];
      Transfer& transfer = transfers[static_cast<std::size_t>(rank)];
      const int fd = entries[i].fd;
      if ((entries[i].revents & POLLOUT) != 0) {
        const auto size =
            ::send(fd, out.data() + transfer.num_out, out.size() - transfer.num_out, MSG_NOSIGNAL);
        if (size < 0 && errno != EAGAIN) fail(rank, ErrorCode::unavailable, "connection lost");
        if (size > 0) transfer.num_out += static_cast<std::size_t>(size);
      }
      if ((entries[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      const auto size =
          ::recv(fd, transfer.in.data() + transfer.num_in, transfer.in.size() - transfer.num_in, 0);
      if (size == 0 && transfer.num_in < transfer.in.size())
        fail(rank, ErrorCode::unavailable, "connection lost");
      if (size < 0 && errno != EAGAIN) fail(rank, ErrorCode::unavailable, "connection lost");
      if (size > 0) transfer.num_in += static_cast<std::size_t>(size);
      if (!transfer.has_size && transfer.num_in == 8) {
        std::uint64_t count = 0;
        std::memcpy(&count, transfer.in.data(), 8);
        transfer.in = Bytes(count);
        transfer.num_in = 0;
        transfer.has_size = true;
      }
    }
    if (!deadline.has_expired()) continue;
    for (const int rank : ranks) fail(rank, ErrorCode::deadline_exceeded, "no answer in time");
  }
  std::vector<Bytes> all;
  for (Transfer& transfer : transfers) all.push_back(std::move(transfer.in));
  all[static_cast<std::size_t>(rank())] = std::move(mine);
  return all;
}

std::shared_ptr<Group> PlainExchange::split() {
  const Lock lock(mutex_);
  SplitPath path = path_;
  path.push_back(num_splits_++);
  return std::make_shared<PlainExchange>(links_, std::move(path));
}

}  // namespace cohort::collective::formation

// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/backends/tcp/connection.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/net/waker.h"

namespace cohort::collective::tcp {
namespace {

constexpr int kLanes = 2;

int count_here(const Links& links) {
  int num_here = 0;
  for (int rank = 0; rank < links.size(); ++rank)
    num_here += links.host(rank) == links.host(links.rank()) ? 1 : 0;
  return num_here;
}

// Between processes of one host nothing can be congested. But some systems choose BBR for all
// connections, which measures a rate and lets timers hold back what would exceed it: 1 MiB took
// twice as long in some connections as in others. Where it fails, calls are only slower.
void do_not_pace(const FileDescriptor& socket) {
  constexpr std::string_view kEverywhere = "reno";
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kEverywhere.data(), kEverywhere.size());
}

// Until something has come, frames or only farewells.
void sleep_on(const Channels& channels, bool has_frames, TimePoint until) {
  c10::SmallVector<pollfd, 16> sockets;
  for (const auto& channel : channels) {
    const auto* const connection = static_cast<const Connection*>(channel.get());
    if (!connection) continue;
    // A socket whose events nobody wants is left out: it would report its end all the time.
    if (has_frames && !connection->has_ended()) {
      const int in = connection->is_holding() ? 0 : POLLIN;
      const int events = in | (connection->is_sending() ? POLLOUT : 0);
      if (events != 0) sockets.push_back({connection->frames_fd(), static_cast<short>(events), 0});
    }
    if (!connection->has_farewell_ended() && !connection->farewell())
      sockets.push_back({connection->farewell_fd(), POLLIN, 0});
  }
  ::poll(sockets.data(), sockets.size(), net::poll_milliseconds(Deadline(until)));
}

}  // namespace

Sockets::Sockets(std::shared_ptr<Links> links)
    : Carrier(count_here(*links)), links_(std::move(links)) {}

Channels Sockets::connect(const SplitPath& path, Deadline deadline) {
  const auto size = static_cast<std::size_t>(links_->size());
  std::vector<FileDescriptor> sockets;
  if (size > 1) sockets = links_->open(path, kLanes, deadline);
  Channels channels(size);
  for (std::size_t i = 0; i < size; ++i) {
    const auto rank = static_cast<int>(i);
    if (rank == links_->rank()) continue;
    if (links_->host(rank) == links_->host(links_->rank())) do_not_pace(sockets[i * kLanes]);
    channels[i] = std::make_unique<Connection>(links_->rank(), rank, std::move(sockets[i * kLanes]),
                                               std::move(sockets[i * kLanes + 1]));
  }
  return channels;
}

void Sockets::sleep(const Channels& channels, TimePoint, TimePoint until) {
  sleep_on(channels, /*has_frames=*/true, until);
}

void Sockets::sleep_for_farewell(const Channels& channels, TimePoint until) {
  sleep_on(channels, /*has_frames=*/false, until);
}

}  // namespace cohort::collective::tcp

// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/local_cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::cli {
namespace {

// A socket that is bound but does not listen: it keeps its port from others. Used only from here.
class BoundSocket {
 public:
  // Port 0: the system chooses.
  explicit BoundSocket(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    COHORT_CHECK(fd_ >= 0, ErrorCode::resource_exhausted,
                 "[cli.launch] expected a socket, got: ", std::strerror(errno));
    // As the servers do: a port whose last connections still linger is not taken.
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    is_bound_ = ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    socklen_t size = sizeof address;
    if (is_bound_ && ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0)
      port_ = ntohs(address.sin_port);
  }
  BoundSocket(BoundSocket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), port_(other.port_), is_bound_(other.is_bound_) {}
  ~BoundSocket() {
    if (fd_ >= 0) ::close(fd_);
  }

  std::uint16_t port() const { return port_; }
  bool is_bound() const { return is_bound_; }

 private:
  int fd_;
  std::uint16_t port_ = 0;
  bool is_bound_ = false;
};

}  // namespace

LocalCluster::LocalCluster(int workers, int ps) {
  for (int i = 0; i < ps; ++i) servers_.push_back({"ps", i});
  for (int i = 0; i < workers; ++i) servers_.push_back({"worker", i});
  std::vector<BoundSocket> sockets;  // all held until each has its own port
  const auto free_address = [&] {
    const BoundSocket& socket = sockets.emplace_back(std::uint16_t{0});
    COHORT_CHECK(socket.is_bound(), ErrorCode::resource_exhausted,
                 "[cli.launch] expected a free port on 127.0.0.1, got: ", std::strerror(errno));
    return "127.0.0.1:" + std::to_string(socket.port());
  };
  std::map<std::string, std::vector<std::string>> jobs;
  jobs["chief"].push_back(free_address());
  for (const TaskId& task : servers_) jobs[task.job].push_back(free_address());
  spec_ = ClusterSpec(jobs);
}

std::string LocalCluster::tf_config(const TaskId& task) const {
  const nlohmann::json config = {{"cluster", nlohmann::json::parse(spec_.to_json())},
                                 {"task", {{"type", task.job}, {"index", task.index}}}};
  return config.dump();
}

const std::string& LocalCluster::address(const TaskId& task) const {
  return spec_.task_address(task.job, task.index);
}

bool LocalCluster::is_taken(const TaskId& task) const {
  const std::string& text = address(task);
  return !BoundSocket(static_cast<std::uint16_t>(std::stoi(text.substr(text.rfind(':') + 1))))
              .is_bound();
}

}  // namespace cohort::cli

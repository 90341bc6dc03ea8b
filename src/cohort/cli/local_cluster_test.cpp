// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/local_cluster.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "cohort/cluster/cluster_resolver.h"

namespace cohort::cli {
namespace {

TEST(LocalCluster, NamesParameterServersThenWorkers) {
  const LocalCluster cluster({.workers = 2, .ps = 1});
  EXPECT_EQ(cluster.servers(), (std::vector<TaskId>{{"ps", 0}, {"worker", 0}, {"worker", 1}}));
}

TEST(LocalCluster, WithoutParameterServersHasNoChief) {
  const LocalCluster cluster({.workers = 2, .ps = 0});
  EXPECT_EQ(cluster.tasks(), (std::vector<TaskId>{{"worker", 0}, {"worker", 1}}));
  EXPECT_EQ(cluster.acting_chief(), (TaskId{"worker", 0}));
  EXPECT_EQ(LocalCluster({.workers = 1, .ps = 1}).tasks().back(), LocalCluster::chief());
}

TEST(LocalCluster, GivesEachTaskAnotherPort) {
  const LocalCluster cluster({.workers = 20, .ps = 20});
  std::set<std::string> addresses = {cluster.address(LocalCluster::chief())};
  for (const TaskId& task : cluster.servers()) addresses.insert(cluster.address(task));
  EXPECT_EQ(addresses.size(), 41u);
}

TEST(LocalCluster, ItsTfConfigIsOneTheResolverReads) {
  const LocalCluster cluster({.workers = 2, .ps = 1});
  ::setenv("TF_CONFIG", cluster.tf_config({"worker", 1}).c_str(), 1);
  const TfConfigResolver resolver;
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 2);
  EXPECT_EQ(resolver.cluster_spec().task_address("ps", 0), cluster.address({"ps", 0}));
  ::unsetenv("TF_CONFIG");
}

// A port was released before its server had started, so another launch could choose it.
TEST(LocalCluster, KeepsItsPorts) {
  const LocalCluster first({.workers = 50, .ps = 50});
  std::set<std::string> addresses = {first.address(LocalCluster::chief())};
  for (const TaskId& task : first.servers()) addresses.insert(first.address(task));
  const LocalCluster second({.workers = 50, .ps = 50});
  for (const TaskId& task : second.servers())
    EXPECT_FALSE(addresses.contains(second.address(task))) << second.address(task);
}

TEST(LocalCluster, SeesThatSomebodyListens) {
  const LocalCluster cluster({.workers = 1, .ps = 1});
  const TaskId task{"ps", 0};
  EXPECT_FALSE(cluster.is_taken(task));
  const std::string& address = cluster.address(task);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;  // as servers do, because the cluster has reserved the port
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  EXPECT_TRUE(cluster.is_taken(task));
  ::close(fd);
}

}  // namespace
}  // namespace cohort::cli

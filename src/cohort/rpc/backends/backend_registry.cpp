// SPDX-License-Identifier: Apache-2.0
// The table of all backends, one row each.
#include <array>

#include "cohort/rpc/backends/grpc/grpc_backend.h"
#include "cohort/rpc/backends/inprocess/inprocess_backend.h"
#include "cohort/rpc/backends/stream/stream_backend.h"
#include "cohort/rpc/channel.h"

namespace cohort::rpc {
namespace {

struct Row {
  std::string_view name;
  Backend& (*backend)();
};

constexpr std::array kBackends = {
    Row{"inprocess", backends::inprocess_backend},
    Row{"stream", backends::stream_backend},
    Row{"grpc", backends::grpc_backend},
};

}  // namespace

Backend& backend_of(std::string_view name) {
  for (const Row& row : kBackends) {
    if (row.name == name) return row.backend();
  }
  std::string known;
  for (const Row& row : kBackends) known += " " + std::string(row.name);
  throw Error(ErrorCode::unimplemented,
              "[rpc.backend] expected one of" + known + ", got '" + std::string(name) +
                  "'; correct the name in ServerOptions::backends or ClusterOptions::backend");
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Row& row : kBackends) names.emplace_back(row.name);
  return names;
}

}  // namespace cohort::rpc

// SPDX-License-Identifier: Apache-2.0
// The table of all backends, one row each.
#include <array>

#include "cohort/rpc/backends/grpc/grpc_backend.h"
#include "cohort/rpc/backends/inprocess/inprocess_backend.h"
#include "cohort/rpc/backends/stream/stream_backend.h"
#include "cohort/rpc/channel.h"

namespace cohort::rpc {
namespace {

constexpr std::array kBackends = {
    Backend{"inprocess", backends::connect_inprocess},
    Backend{"stream", backends::connect_stream},
    Backend{"grpc", backends::connect_grpc},
};

}  // namespace

const Backend& backend_of(std::string_view name) {
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return backend;
  }
  std::string known;
  for (const Backend& backend : kBackends) known += " " + std::string(backend.name);
  throw Error(ErrorCode::unimplemented,
              "[rpc.backend] expected one of" + known + ", got '" + std::string(name) +
                  "'; correct the name in ServerOptions::backends or ClusterOptions::backend");
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Backend& backend : kBackends) names.emplace_back(backend.name);
  return names;
}

}  // namespace cohort::rpc

// SPDX-License-Identifier: Apache-2.0
// The control plane's structs as protobuf messages and back.
#pragma once

#include "cohort/rpc/control.h"
#include "control.pb.h"

namespace cohort::rpc::internal {

proto::HandshakeRequest to_proto(const HandshakeRequest& request);
proto::HandshakeReply to_proto(const HandshakeReply& reply);
proto::Health to_proto(const TaskHealth& health);
proto::Membership to_proto(const Membership& membership);
proto::Placement to_proto(const Placement& placement);
proto::FunctionBody to_proto(const FunctionBody& body);
proto::Variables to_proto(const std::vector<VariableSpec>& variables);
proto::IteratorSpec to_proto(const IteratorSpec& iterator);
proto::ReleaseRequest to_proto(const std::vector<std::uint64_t>& resources);
proto::ShutdownRequest to_proto(std::chrono::milliseconds grace);

HandshakeRequest from_proto(const proto::HandshakeRequest& message);
HandshakeReply from_proto(const proto::HandshakeReply& message);
TaskHealth from_proto(const proto::Health& message);
Membership from_proto(const proto::Membership& message);
Placement from_proto(const proto::Placement& message);
FunctionBody from_proto(const proto::FunctionBody& message);
// data_loss for an invalid dtype or size.
std::vector<VariableSpec> from_proto(const proto::Variables& message);
IteratorSpec from_proto(const proto::IteratorSpec& message);
std::vector<std::uint64_t> from_proto(const proto::ReleaseRequest& message);
std::chrono::milliseconds from_proto(const proto::ShutdownRequest& message);

}  // namespace cohort::rpc::internal

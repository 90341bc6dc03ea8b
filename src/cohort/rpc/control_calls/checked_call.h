// SPDX-License-Identifier: Apache-2.0
// Control calls and their answers with checksums (control.proto). Neither is used unless it is
// intact.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "control.pb.h"

namespace cohort::rpc::internal {

// Throws invalid_argument for a request above the limit of protobuf, 2 GiB.
proto::Call checked_call(std::string_view method, std::uint64_t coordinator, std::string body);
proto::Answer checked_answer(const proto::Call& call, std::string body);
// A message above 16 KiB is shortened.
proto::Answer checked_answer(const proto::Call& call, const Error& error);

// Throws resource_exhausted if this process has too little address space for a call of that size,
// since gRPC ends the process when it finds no memory for what it receives.
void check_call_room(std::uint64_t bytes);

// Whether it arrived as it was sent, at this method.
bool is_intact(const proto::Call& call, std::string_view method);
// Whether it arrived as it was sent, and answers this call.
bool is_intact(const proto::Answer& answer, const proto::Call& call);

// The error in an intact answer that has one.
Error error_of(const proto::Answer& answer);

}  // namespace cohort::rpc::internal

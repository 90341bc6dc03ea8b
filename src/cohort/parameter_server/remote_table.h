// SPDX-License-Identifier: Apache-2.0
// A table on parameter servers, for the coordinator: reads its rows, and moves its state.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "cohort/core/export.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/parameter_server/placement_table.h"
#include "cohort/rpc/messages.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable.h"

namespace cohort::parameter_server {

// Thread-safe. Refers to its client.
class COHORT_API RemoteTable {
 public:
  // `places`: of this variable alone.
  RemoteTable(const ParameterClient& client, Places places, Variable variable)
      : client_(client), places_(std::move(places)), variable_(std::move(variable)) {}

  // The rows of these keys, int64 [n].
  at::Tensor look_up(const at::Tensor& keys) const;
  // Its size, summed over the servers.
  rpc::TableUse use() const;
  // In records of about walk.chunk_bytes: all rows, then the counts of keys without rows. The rows
  // of a record fit their slots, but the table may change between two records: it is too large to
  // wait for one moment. With a `cut` they are all of that moment, but come only once.
  void export_state(const StateWalk& walk, std::uint64_t cut,
                    const std::function<void(VariableRecord record)>& take) const;
  // Takes one record, as export_state() gives it, from any number of servers.
  void import_state(const VariableRecord& record) const;
  // Removes the rows of these keys, int64 [n], and what is counted of them.
  void erase(const at::Tensor& keys) const;

 private:
  ParameterClient::Describe describe(const char* what) const;
  std::vector<rpc::StateOfRange> ask(std::span<const ParameterClient::Range> ranges,
                                     const ParameterClient::Export& how, const char* what) const;
  class Exporter;

  const ParameterClient& client_;
  const Places places_;
  const Variable variable_;
};

}  // namespace cohort::parameter_server

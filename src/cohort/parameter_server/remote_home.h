// SPDX-License-Identifier: Apache-2.0
// The home of the variables of one parameter server strategy.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/parameter_server/parameter_client.h"
#include "cohort/variable/variable_home.h"

namespace cohort {

// In an EagerStep an update also sends what the step wrote in place into the stand-ins of these
// variables, before the update itself, and brings the new values into the stand-ins. Thread-safe.
class COHORT_API RemoteHome : public VariableHome {
 public:
  explicit RemoteHome(ParameterClient::Options options) : client_(std::move(options)) {}

  void check_use(std::string_view, std::string_view) const override {}
  std::vector<at::Tensor> read(std::span<const Variable> variables) const override;
  void assign(std::span<const Assignment> assignments) override;
  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const double> hyper) override;
  // At the end of an EagerStep: assigns what the step wrote into the stand-ins. Throws
  // invalid_argument, and sends nothing, if it wrote into the stand-in of a trainable variable.
  void write_back(std::span<const Variable> variables) const;

 protected:
  const ParameterClient& client() const { return client_; }

 private:
  void update(std::vector<ParameterClient::Push> pushes, const std::string& what) const;

  const ParameterClient client_;
};

}  // namespace cohort

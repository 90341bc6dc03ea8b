// SPDX-License-Identifier: Apache-2.0
// The home of the variables of one parameter server strategy.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/parameter_server/parameter_client.h"
#include "cohort/parameter_server/placement_table.h"
#include "cohort/parameter_server/remote_table.h"
#include "cohort/parameter_server/remote_variable.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/variable/attached_states.h"
#include "cohort/variable/variable_home.h"

namespace cohort {

// In an EagerStep an update also sends what the step wrote in place into the stand-ins of these
// variables, before the update itself, and brings the new values into the stand-ins. Thread-safe.
// Many methods because each one of VariableHome sends requests of its own.
class COHORT_API RemoteHome : public VariableHome {
 public:
  explicit RemoteHome(std::shared_ptr<parameter_server::ServerLinks> links)
      : links_(std::move(links)), client_(links_) {}

  // Where variables are, in this order. Throws as RemoteVariable::of() does.
  parameter_server::Places places_of(std::span<const Variable> variables) const;
  std::vector<rpc::Slice> slices_of(const Variable& variable) const {
    const parameter_server::Places places = places_of(std::span(&variable, 1));
    return {places.parts().begin(), places.parts().end()};
  }
  parameter_server::ServerLinks& links() const { return *links_; }
  const parameter_server::PlacementTable& placement() const { return placement_; }
  parameter_server::PlacementTable& placement() { return placement_; }

  void check_use(std::string_view, std::string_view) const override {}
  std::vector<at::Tensor> read(std::span<const Variable> variables) const override;
  bool may_cache_reads() const override { return true; }
  at::Tensor read_rows(const Variable& variable, const at::Tensor& ids) const override;
  void export_state(std::span<const Variable> variables, const StateWalk& walk,
                    const TakeRecord& take) const override;
  // Marks a cut on all servers of these variables, or ends it; see rpc::CutRequest. No push may
  // come meanwhile, or it may be in the cut of one server and not in that of another one.
  void take_cut(std::span<const Variable> variables, const rpc::CutRequest& request) const;
  // Lets each of these servers keep the values that these variables have there now, for pulls that
  // name the snapshot; see rpc::SnapshotRequest. No push may come meanwhile.
  void take_snapshot(std::uint64_t number, std::span<const Variable> variables,
                     std::span<const rpc::MemberId> servers) const;
  // The state that these variables had at the cut, each as soon as it has come. It comes only once.
  // Throws aborted if a server has ended the cut.
  void export_cut(std::span<const Variable> variables, const StateWalk& walk, std::uint64_t cut,
                  const TakeRecord& take) const;
  // In messages of about chunk_bytes of StateWalk's default.
  void import_state(const Variable& variable, const VariableRecord& record) override;
  std::vector<std::shared_ptr<AttachedState>> attached_states() const override {
    return attached_.all();
  }
  void write(std::span<const VariableWrite> writes) override;
  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const double> hyper) override;
  // A table of this home. It must not outlive the home.
  parameter_server::RemoteTable table(const Variable& variable) const;
  // At the end of an EagerStep: assigns what the step wrote into the stand-ins. Throws
  // invalid_argument, and sends nothing, if it wrote into the stand-in of a trainable variable.
  void write_back(std::span<const Variable> variables) const;

 protected:
  void add_attached(const std::shared_ptr<AttachedState>& state) override { attached_.add(state); }
  struct RemoteUpdate {
    Variable variable;
    rpc::Effect effect;  // push() sets its variable
  };
  // The effects of one server are applied in this order, all or none. `what` is for the context of
  // errors: "assign to".
  void push(std::span<const RemoteUpdate> updates, const std::string& what) const;
  // All reads and pushes of variables go through it. A home whose pushes have names, or that waits
  // for a server that is restarted, overrides it. `variables`: those of the exchange; `what`: as
  // in push().
  virtual void exchange(parameter_server::ParameterClient::Exchange exchange,
                        std::span<const Variable> variables, const std::string& what) const;
  // Joins the parts that were pulled of variables which are at these places; undefined for one of
  // which no part was. Throws data_loss if they have another spec.
  std::vector<at::Tensor> joined(std::span<const Variable> variables,
                                 const parameter_server::Places& places,
                                 std::span<at::Tensor> parts) const;

 private:
  void update(std::vector<RemoteUpdate> updates, const std::string& what) const;
  void import_range(const Variable& variable, const VariableRecord::Value& value,
                    const rpc::Slice& slice, const rpc::StateRange& range, std::uint64_t version);
  static std::vector<RemoteUpdate> written_by(const EagerStep& step,
                                              std::span<const Variable> variables);
  class Exporter;
  // Describes requests for errors, by the names of those of the variables that they are about.
  static parameter_server::ParameterClient::Describe describe(std::span<const Variable> variables,
                                                              const std::string& what);

  const std::shared_ptr<parameter_server::ServerLinks> links_;
  const parameter_server::ParameterClient client_;
  parameter_server::PlacementTable placement_;
  AttachedStates attached_;
};

}  // namespace cohort

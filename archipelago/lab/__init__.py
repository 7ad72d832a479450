"""The laboratory: tools that simulate, check, study, plan and measure runs. No run imports it."""

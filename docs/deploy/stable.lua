-- Orthanc: send a CT series to the node once no object of it has arrived for StableAge seconds.
-- The node waits until the whole study is silent. Its results (SR, SC, KO, PM) are not CT and are not sent back.
function OnStableSeries(seriesId, tags, metadata)
  if tags['Modality'] == 'CT' then
    local job = {Resources = {seriesId}, Synchronous = false}
    RestApiPost('/modalities/ich_mil/store', DumpJson(job, true))
  end
end

//! Runs a job from Run to Finish (service.md §7).

use std::io;

use step_runner_model::JobId;
use step_runner_model::error::Chain;
use step_runner_proto::v1;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{Client, Error, Event, Request};

impl Client {
    /// Runs a job to its end and removes it from the daemon. Writes its log to `logs` and passes the results of its
    /// steps to `results` as they come: each once, the whole tree last. The job's own failure is no error; the status
    /// reports it. A failed removal is no error either, because the daemon removes the job by itself later.
    ///
    /// Restores a broken connection, and delivers nothing twice. If `logs` or `results` fail, stops and removes the job
    /// ([`Error::Output`]). If the future is dropped, a background task stops and removes the job, as long as the
    /// runtime lives; [`Client::finish`] waits for that removal. Only a connection that stays broken leaves the job
    /// running. The error then says how to follow it again.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use step_runner_client::model::JobId;
    /// use step_runner_client::{Client, Request};
    ///
    /// let client = Client::connect("ssh://ci@build7".parse()?).await?;
    /// let request = Request::new(JobId::parse("42")?, "- {name: hello, script: echo hello}");
    /// let log = tokio::fs::File::create("job.log").await?;
    /// let mut steps = Vec::new();
    /// let status = client.run_and_follow(&request, log, |result| Ok(steps.push(result))).await?;
    /// println!("{} after {} steps", status.exit_code, status.steps_done);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_and_follow(
        &self,
        request: &Request,
        logs: impl AsyncWrite + Unpin,
        results: impl FnMut(v1::StepResult) -> io::Result<()>,
    ) -> Result<v1::Status, Error> {
        let id = request.id();
        let mut dropped = Dropped { client: Some(self.clone()), id: id.clone() };
        let followed = match self.run(request).await {
            Ok(()) => tokio::try_join!(self.write_log(id, logs), self.hand_on(id, results)),
            Err(error) => Err(error),
        };
        // Disarm: the daemon completes a Finish even if this future is dropped, and in the other cases the job stays.
        dropped.client = None;
        match &followed {
            // The job's end is known, and a failed removal does not change it.
            Ok(_) => {
                if let Err(error) = self.remove_ended(id).await {
                    tracing::warn!(job = %id, error = %Chain(&error), "the job has ended, but was not removed");
                }
            }
            Err(Error::Output { .. }) => self.finish(id).await?,
            Err(_) => {}
        }
        followed.map(|(status, ())| status)
    }

    async fn write_log(&self, id: &JobId, mut logs: impl AsyncWrite + Unpin) -> Result<v1::Status, Error> {
        let failed = |source| Error::Output { id: id.clone(), source };
        let mut follow = self.follow(id, 0);
        loop {
            match follow.next().await? {
                Event::Log(bytes) => logs.write_all(&bytes).await.map_err(failed)?,
                Event::Unfinished(_) => {}
                Event::End(status) => {
                    logs.flush().await.map_err(failed)?;
                    return Ok(*status);
                }
            }
        }
    }

    async fn hand_on(
        &self,
        id: &JobId,
        mut results: impl FnMut(v1::StepResult) -> io::Result<()>,
    ) -> Result<(), Error> {
        let mut follow = self.follow_steps(id);
        while let Some(result) = follow.next().await? {
            results(result).map_err(|source| Error::Output { id: id.clone(), source })?;
        }
        Ok(())
    }
}

/// Finishes the job in the background if the caller drops the future (service.md §7.4).
struct Dropped {
    /// `None` if there is nothing to finish.
    client: Option<Client>,
    id: JobId,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let id = self.id.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // `finish` repeats by itself. Nobody is left to report its failure to.
            runtime.spawn(async move { client.finish(&id).await.ok() });
        }
    }
}
